"""Rows of a model's vocabulary: those of its weights, of the folder of the model, or of the tokenizer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge.starting_weights import FIELD, configuration
from megatron_trainer.worker.failures import RankError

OF_TOKENIZER: Final = "tokenizer.use_tokenizer_vocab_size"
"""Whether the model gets as many rows as the tokenizer has tokens, padded for its ranks."""

_MULTIPLE: Final = 128
"""Rows are added up to a multiple of it, as Megatron does, so that a later layout can divide them too."""


def keep(config: Any, checkpoint: Path, *, pretrains: bool) -> None:
    """Give a model the vocabulary of its weights: that of the tokenizer, if a run with it made them."""
    model = (configuration(checkpoint) or {}).get("model") or {}
    if pretrains and model.get("should_pad_vocab"):
        config.tokenizer.use_tokenizer_vocab_size = True
        return
    config.tokenizer.use_tokenizer_vocab_size = False
    if pretrains and isinstance(model.get("vocab_size"), int):
        config.model.vocab_size = model["vocab_size"]


def require_same(checkpoint: Path) -> None:
    """Have Bridge refuse a tokenizer of another size than the vocabulary of the weights; call it once.

    Megatron drops rows of a checkpoint that the model lacks, and fills missing ones with zeros.
    """
    from megatron.bridge.training import setup

    inner = setup._validate_and_set_vocab_size
    theirs = ((configuration(checkpoint) or {}).get("model") or {}).get("vocab_size")

    def checked(*args: Any, **kwargs: Any) -> tuple[int, bool]:
        size, pads = inner(*args, **kwargs)
        if isinstance(theirs, int) and theirs != size:
            raise RankError(
                ExitCode.BAD_DATA,
                f"{FIELD}: the weights in {checkpoint} have {theirs} tokens, and the tokenizer of this run "
                f"{size}; name the tokenizer that they were trained with (data.tokenizer)",
            )
        return size, pads

    setup._validate_and_set_vocab_size = checked


def fit(config: Any, folder: object) -> None:
    """Have a model that is pretrained with the vocabulary of its folder take that folder's tokenizer.

    Published ones may have tokens for which the model has no row, such as those of images in Gemma 3's: rows
    are added, which exports leave out. Of any other tokenizer they are an error. Call it once.
    """
    from megatron.bridge.training import setup

    inner: Callable[..., tuple[int, bool]] = setup._validate_and_set_vocab_size
    ranks, tokenizer = config.model.tensor_model_parallel_size, config.tokenizer.tokenizer_model

    def fitted(
        model_vocab_size: int | None, tokenizer_vocab_size: int, use_tokenizer_vocab_size: bool = False
    ) -> tuple[int, bool]:
        rows, tokens = model_vocab_size, tokenizer_vocab_size
        if rows is None or use_tokenizer_vocab_size or tokens <= rows:
            return inner(rows, tokens, use_tokenizer_vocab_size)
        if Path(str(tokenizer)) != Path(str(folder)):
            raise RankError(
                ExitCode.BAD_DATA,
                f"{tokenizer} has {tokens} tokens, and the model {rows}; name the tokenizer that its weights "
                "were trained with (data.tokenizer)",
            )
        multiple = math.lcm(_MULTIPLE, ranks)
        return -(-tokens // multiple) * multiple, False

    setup._validate_and_set_vocab_size = fitted

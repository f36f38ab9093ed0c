"""Rows of a model's vocabulary: those of its weights, of the folder of the model, or of the tokenizer."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from megatron_contract.bridge_run import BASE_OF_EXPORT, MODEL_FOLDER, Value
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import model_folder
from megatron_trainer.bridge.starting_weights import FIELD, configuration
from megatron_trainer.worker.failures import RankError

OF_TOKENIZER: Final = "tokenizer.use_tokenizer_vocab_size"
"""Whether the model gets as many rows as the tokenizer has tokens, padded for its ranks."""

_MULTIPLE: Final = 128
"""Rows are added up to a multiple of it, as Megatron does, so that a later layout can divide them too."""

type Sizes = Callable[[int | None, int, bool], tuple[int, bool]]
"""Vocabulary of the model and of the tokenizer, and whether the latter is taken -> that of the run, and
whether it is padded."""


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


def fit(config: Any, overrides: Mapping[str, Value]) -> None:
    """Have Bridge's loop give a model that is pretrained the vocabulary of `fitted`; call it once."""
    from megatron.bridge.training import setup

    sizes = fitted(config, overrides, setup._validate_and_set_vocab_size)

    def of_run(
        model_vocab_size: int | None, tokenizer_vocab_size: int, use_tokenizer_vocab_size: bool = False
    ) -> tuple[int, bool]:
        return sizes(model_vocab_size, tokenizer_vocab_size, use_tokenizer_vocab_size)

    setup._validate_and_set_vocab_size = of_run


def check(config: Any, overrides: Mapping[str, Value]) -> None:
    """Raise what a start would of the vocabulary of a run that is exported, whose tokenizer is read."""
    if BASE_OF_EXPORT not in overrides:
        return
    from megatron.bridge.training import setup
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    tokens = build_tokenizer(config.tokenizer).vocab_size
    sizes = fitted(config, overrides, setup._validate_and_set_vocab_size)
    sizes(config.model.vocab_size, tokens, config.tokenizer.use_tokenizer_vocab_size)


def fitted(config: Any, overrides: Mapping[str, Value], inner: Sizes) -> Sizes:
    """Have a model with the vocabulary of its folder take that folder's tokenizer, where `inner` would not.

    Published ones may have tokens for which the model has no row, such as those of images in Gemma 3's: rows
    are added, which exports leave out. Of any other tokenizer they are an error. So are fewer rows than the
    export needs, which would only fail when all is trained.
    """
    ranks, tokenizer = config.model.tensor_model_parallel_size, config.tokenizer.tokenizer_model
    padding = config.model.make_vocab_size_divisible_by * ranks
    folder, base = overrides.get(MODEL_FOLDER), overrides.get(BASE_OF_EXPORT)
    needed = model_folder.vocabulary(Path(base)) if isinstance(base, str) else 0

    def sizes(rows: int | None, tokens: int, of_tokenizer: bool) -> tuple[int, bool]:
        if rows is None or of_tokenizer or tokens <= rows:
            size, pads = inner(rows, tokens, of_tokenizer)
            _require_rows(_padded(size, padding) if pads else size, needed, base, "this run")
            return size, pads
        if Path(str(tokenizer)) != Path(str(folder)):
            raise RankError(
                ExitCode.BAD_DATA,
                f"{tokenizer} has {tokens} tokens, and the model {rows}; name the tokenizer that its weights "
                "were trained with (data.tokenizer)",
            )
        multiple = math.lcm(_MULTIPLE, ranks)
        return _padded(tokens, multiple), False

    return sizes


def require_rows_below_adapters(checkpoint: Path, base: object) -> None:
    """Raise RankError with BAD_DATA if the weights below adapters have fewer rows than their export needs.

    Of a run that trains all weights Megatron adds the rows.
    """
    model = (configuration(checkpoint) or {}).get("model") or {}
    size = model.get("vocab_size")
    if isinstance(base, str) and isinstance(size, int):
        if model.get("should_pad_vocab"):
            size = _padded(size, model["make_vocab_size_divisible_by"] * model["tensor_model_parallel_size"])
        _require_rows(size, model_folder.vocabulary(Path(base)), base, str(checkpoint))


def _padded(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _require_rows(rows: int, needed: int, base: object, of: str) -> None:
    if rows < needed:
        raise RankError(
            ExitCode.BAD_DATA,
            f"export: config.json in {base} has {needed} rows of the vocabulary, and the model of {of} has "
            f"{rows}, as its tokenizer or its first checkpoint required, and the others cannot be exported; "
            "leave export out, or start a new recipe from imported weights (init.from.huggingFace)",
        )

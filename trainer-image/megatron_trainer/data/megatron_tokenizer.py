"""Tokenizers of SentencePiece and tiktoken: those that Megatron builds from the flags of a run.

The ids are Megatron's own, with all its flags (pattern, special tokens, white space), so documents are
prepared with exactly the tokenizer of the run.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.shards import batches, id_type

SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
TIKTOKEN = "TikTokenizer"
_MODEL = "data.tokenizer.tokenizerModel"


@dataclass(frozen=True)
class MegatronEncoder:
    """A tokenizer of Megatron with ids below `vocabulary`; `digest` is of all that its ids depend on.

    `eod` is the id that is appended to each document where it is set.
    """

    tokenizer: Any
    vocabulary: int
    eod: int | None
    digest: str
    threads: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that Megatron gives ids of a vocabulary of this size."""
        return id_type(self.vocabulary)

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the ids of each text that has some, an array of shape [tokens]."""
        end = [] if self.eod is None else [self.eod]
        # Both libraries release the interpreter's lock.
        with ThreadPoolExecutor(self.threads) as pool:
            for batch in batches(texts):
                for ids in pool.map(self.tokenizer.tokenize, batch):
                    if len(ids):
                        yield np.array([*ids, *end], dtype=self.dtype)


def is_asked_for(flags: Sequence[str]) -> bool:
    """Return whether Megatron's flags of a run name a tokenizer of this module."""
    return any(
        name == "--tokenizer-type" and value in (*SENTENCEPIECE, TIKTOKEN) for name, value in pairwise(flags)
    )


def load(path: Path, flags: Sequence[str], *, append_eod: bool, threads: int) -> MegatronEncoder:
    """Build the tokenizer of Megatron's flags of a run; `path` is its file. Raises PreparationError."""
    args = _parse(flags)
    if not path.is_file():
        there = "is a folder" if path.is_dir() else "does not exist"
        file = (
            "the .model file of SentencePiece"
            if args.tokenizer_type != TIKTOKEN
            else "the vocabulary's .json file"
        )
        raise _refuse(f"{path} {there}; name {file}, and copy it to the data volume")
    if args.tokenizer_type == TIKTOKEN:
        _check_entries(path, args)
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer

    try:
        tokenizer = build_tokenizer(args)
        eod = tokenizer.eod
    except Exception as error:  # of many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _refuse(f"{args.tokenizer_type} cannot load {path}: {reason}; copy it again") from error
    if append_eod and (eod is None or eod < 0):
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"data.prepare.appendEod: the tokenizer {path} has no end token; set false here, or train it "
            "with one (eos_id of SentencePiece's trainer)",
        )
    depends = {name: str(value) for name, value in sorted(vars(args).items()) if name != "tokenizer_model"}
    digest = hashlib.sha256(json.dumps(depends).encode() + path.read_bytes()).hexdigest()
    return MegatronEncoder(tokenizer, tokenizer.vocab_size, eod if append_eod else None, digest, threads)


def check_vocabulary(path: Path, encoder: MegatronEncoder, vocab_size: int | None) -> None:
    """Raise PreparationError for a tokenizer with ids that the model does not have."""
    if vocab_size is not None and encoder.vocabulary > vocab_size:
        problem = f"{path} has {encoder.vocabulary:,} ids, and model.vocabSize is {vocab_size:,}"
        fix = f"set model.vocabSize: {encoder.vocabulary}, or name the model's own tokenizer"
        raise _refuse(f"{problem}; {fix}")


def _parse(flags: Sequence[str]) -> argparse.Namespace:
    """Megatron's settings of the tokenizer, parsed by its own table of them. Raises PreparationError."""
    from megatron.training.argument_utils import ArgumentGroupFactory
    from megatron.training.config import TokenizerConfig

    parser = argparse.ArgumentParser(prog="megatron-prepare", allow_abbrev=False, exit_on_error=False)
    ArgumentGroupFactory(TokenizerConfig).build_group(parser, "tokenizer")
    try:
        args, _ = parser.parse_known_args(list(flags))
    except argparse.ArgumentError as error:
        raise PreparationError(ExitCode.USAGE, str(error)) from error
    # The size of the model's embedding is not needed here.
    args.pad_vocab_size = False
    return args


def _check_entries(path: Path, args: argparse.Namespace) -> None:
    """Megatron only asserts that the file fills the vocabulary."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        count = len(entries)
        whole = isinstance(entries, list) and all(
            each.keys() == {"rank", "token_bytes", "token_str"} and each["rank"] == rank
            for rank, each in enumerate(entries)
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _refuse(f"{path} is not a list in JSON: {error}; {_FORM}") from error
    if not whole:
        raise _refuse(f"{path} has entries of another form; {_FORM}")
    from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import DEFAULT_TIKTOKEN_MAX_VOCAB

    special, size = args.tiktoken_num_special_tokens, args.vocab_size or DEFAULT_TIKTOKEN_MAX_VOCAB
    if count + special < size:
        problem = f"{path} has {count:,} entries, {count + special:,} with {special:,} special tokens"
        fix = f"set model.vocabSize: {count + special}, or --tiktoken-num-special-tokens in megatronArgs"
        raise _refuse(f"{problem}, and model.vocabSize is {size:,}; {fix}")


_FORM = "write [{rank, token_bytes, token_str}, ...] in the order of the ranks, token_bytes in base64"


def _refuse(problem: str) -> PreparationError:
    return PreparationError(ExitCode.BAD_DATA, f"{_MODEL}: {problem}")

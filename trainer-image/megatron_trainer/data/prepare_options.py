"""The command line of `megatron-prepare` for a folder of text."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.preparation_error import PreparationError

# Byte-level BPE has 256 bytes and the end-of-text token; below that there are no merges.
MIN_VOCABULARY = 257


@dataclass(frozen=True)
class PrepareOptions:
    """The command line. `include` are globs under `source`; without `megatron_flags` no index is built.

    Without `tokenizer_vocab_size` none is trained: `tokenizer_dir` must have one.
    """

    source: Path
    include: tuple[str, ...]
    output_prefix: Path
    tokenizer_dir: Path
    tokenizer_vocab_size: int | None
    append_eod: bool
    workers: int
    megatron_flags: tuple[str, ...] = ()
    index_dir: Path | None = None
    """Folder for the index instead of --data-cache-path."""
    vocab_size: int | None = None
    """Vocabulary of the model."""

    @property
    def data(self) -> Path:
        """The prefix for Megatron's --data-path."""
        return self.output_prefix.with_name(self.output_prefix.name + "_text_document")

    @property
    def marker(self) -> Path:
        """The file that marks the result as finished."""
        return self.output_prefix.with_name(self.output_prefix.name + ".prepared.json")

    def settings(self) -> dict[str, object]:
        """Return the options that the result depends on."""
        settings: dict[str, object] = {
            "source": str(self.source),
            "include": list(self.include),
            "tokenizerDir": str(self.tokenizer_dir),
            "appendEod": self.append_eod,
        }
        if self.tokenizer_vocab_size is not None:
            settings["tokenizerVocabSize"] = self.tokenizer_vocab_size
        return settings


def parse_options(argv: Sequence[str]) -> PrepareOptions:
    """Parse the command line. Raises PreparationError with USAGE."""
    parser = argparse.ArgumentParser(
        prog="megatron-prepare",
        description="Build a corpus that Megatron trains on.",
        epilog="After --: Megatron's flags for the data of a run, whose index is then built too.",
        allow_abbrev=False,
    )
    parser.add_argument("--source", type=Path, required=True, help="folder with the text files")
    parser.add_argument(
        "--include", action="append", help="glob under the source; may be repeated (default **/*)"
    )
    parser.add_argument("--output-prefix", type=Path, required=True, help="path prefix of the output files")
    parser.add_argument(
        "--tokenizer-dir",
        type=Path,
        required=True,
        help="directory of the tokenizer, with tokenizer.json",
    )
    parser.add_argument(
        "--tokenizer-vocab-size",
        type=int,
        help="train a tokenizer of this many entries if the directory has none; without it that is an error",
    )
    parser.add_argument(
        "--append-eod", action="store_true", help="append the end-of-text token to each document"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="tokenizer threads (default: all CPUs)"
    )
    parser.add_argument(
        "--vocab-size", type=int, help="vocabulary of the model; the tokenizer's ids must be below it"
    )
    add_index_dir(parser)
    parser.exit_on_error = False
    own, megatron_flags = split_flags(argv)
    try:
        args, unknown = parser.parse_known_args(own)
    except argparse.ArgumentError as error:
        raise PreparationError(ExitCode.USAGE, str(error)) from error
    if unknown:
        raise PreparationError(
            ExitCode.USAGE, f"unknown arguments: {' '.join(unknown)}; see megatron-prepare --help"
        )
    if args.tokenizer_vocab_size is not None and args.tokenizer_vocab_size < MIN_VOCABULARY:
        raise PreparationError(
            ExitCode.USAGE,
            f"--tokenizer-vocab-size is {args.tokenizer_vocab_size}; set at least {MIN_VOCABULARY}",
        )
    if args.workers < 1:
        raise PreparationError(ExitCode.USAGE, f"--workers is {args.workers}; set 1 or more")
    return PrepareOptions(
        args.source,
        tuple(args.include or ["**/*"]),
        args.output_prefix,
        args.tokenizer_dir,
        args.tokenizer_vocab_size,
        args.append_eod,
        args.workers,
        tuple(megatron_flags),
        args.index_dir,
        args.vocab_size,
    )


def add_index_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option of a folder for the index of a run's samples, or for packed ones."""
    text = "build the index of the run's samples, or pack them, there instead of where the run looks for them"
    parser.add_argument("--index-dir", type=Path, help=text)


def add_packing(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run that fine-tunes on packed samples."""
    text = "folder where the run looks for its packed samples: pack them there"
    parser.add_argument("--packed-folder", type=Path, help=text)
    parser.add_argument("--seed", type=int, default=0, help="seed of the order in which samples are packed")


def add_bridge_run(parser: argparse.ArgumentParser) -> None:
    """Add the option of what the index of a run by Megatron-Bridge depends on."""
    text = "JSON list of a function of Megatron-Bridge and overrides: build the index of this run"
    parser.add_argument("--index-of", type=_words, default=[], help=text)


def _words(text: str) -> list[str]:
    words = json.loads(text)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError("not a list of words")
    return words


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before `--` and those after it."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]

"""`megatron-prepare`: turn a folder of text into what Megatron trains on, once.

    megatron-prepare --source /corpus --include '**/*.py' --output-prefix /data/code \\
        --tokenizer-dir /data/tokenizer --tokenizer-vocab-size 4096 --append-eod

One document a file; a .jsonl file has one a line, under "text". Writes NAME_text_document.bin and .idx with
Megatron's own builder, then NAME.prepared.json, which marks the result as finished: it is not made again.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any, NoReturn

from megatron_contract import environment
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_contract.preparation import PreparationResult
from megatron_contract.termination import TerminationMessage

_BATCH = 256
_PROGRESS_SECONDS = 5.0
# Of byte-level BPE: 256 bytes and the end-of-text token. Below that nothing can be merged.
LEAST_VOCABULARY = 257


class CannotPrepare(Exception):
    """The corpus cannot be made. The text names what is wrong and the mend."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Request:
    """What is asked for. `include` are globs under `source`; paths are absolute or relative to the working
    folder."""

    source: Path
    include: tuple[str, ...]
    output_prefix: Path
    tokenizer_dir: Path
    tokenizer_vocab_size: int
    append_eod: bool
    workers: int

    @property
    def data(self) -> Path:
        """Prefix that Megatron's --data-path names."""
        return self.output_prefix.with_name(self.output_prefix.name + "_text_document")

    @property
    def marker(self) -> Path:
        return self.output_prefix.with_name(self.output_prefix.name + ".prepared.json")

    def settings(self) -> dict[str, object]:
        """What the result depends on."""
        return {
            "source": str(self.source),
            "include": list(self.include),
            "tokenizerDir": str(self.tokenizer_dir),
            "tokenizerVocabSize": self.tokenizer_vocab_size,
            "appendEod": self.append_eod,
        }


def _log(text: str) -> None:
    print(f"megatron-prepare: {text}", flush=True)


def read_request(argv: Sequence[str]) -> Request:
    """Read the command line. Raises CannotPrepare with USAGE."""
    parser = argparse.ArgumentParser(
        prog="megatron-prepare",
        description="Make a corpus that Megatron trains on.",
        allow_abbrev=False,
    )
    parser.add_argument("--source", type=Path, required=True, help="folder with the text")
    parser.add_argument(
        "--include", action="append", help="glob under the source; may be repeated (default **/*)"
    )
    parser.add_argument("--output-prefix", type=Path, required=True, help="folder and name of the result")
    parser.add_argument("--tokenizer-dir", type=Path, required=True, help="a tokenizer, or where to put one")
    parser.add_argument(
        "--tokenizer-vocab-size", type=int, default=32768, help="of a tokenizer that is trained"
    )
    parser.add_argument(
        "--append-eod", action="store_true", help="end each document with the end-of-text token"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="threads that tokenize")
    parser.exit_on_error = False
    try:
        args, unknown = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise CannotPrepare(ExitCode.USAGE, str(error)) from error
    if unknown:
        raise CannotPrepare(
            ExitCode.USAGE, f"unknown arguments: {' '.join(unknown)}; see megatron-prepare --help"
        )
    if args.tokenizer_vocab_size < LEAST_VOCABULARY:
        raise CannotPrepare(
            ExitCode.USAGE,
            f"--tokenizer-vocab-size is {args.tokenizer_vocab_size}; give at least {LEAST_VOCABULARY}",
        )
    if args.workers < 1:
        raise CannotPrepare(ExitCode.USAGE, f"--workers is {args.workers}; give 1 or more")
    return Request(
        args.source,
        tuple(args.include or ["**/*"]),
        args.output_prefix,
        args.tokenizer_dir,
        args.tokenizer_vocab_size,
        args.append_eod,
        args.workers,
    )


def files_of(request: Request) -> list[Path]:
    """The files to read, sorted by name, each once. Raises CannotPrepare where there are none."""
    if not request.source.is_dir():
        raise CannotPrepare(
            ExitCode.BAD_DATA, f"--source {request.source} is not a folder; mount the text there"
        )
    files = sorted({path for glob in request.include for path in request.source.glob(glob) if path.is_file()})
    if not files:
        raise CannotPrepare(
            ExitCode.BAD_DATA, f"no file under {request.source} matches {' or '.join(request.include)}"
        )
    return files


def documents(files: Sequence[Path]) -> Iterator[str]:
    """The documents in the files, in order. Files that are not UTF-8 text, and empty ones, are left out."""
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.suffix != ".jsonl":
            if text.strip():
                yield text
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise CannotPrepare(
                    ExitCode.BAD_DATA, f'{path} line {number} is not an object with "text": {error!r}'
                ) from error


def finished(request: Request) -> PreparationResult | None:
    """The result if it was made before and is still whole, None if it has to be made.

    Raises CannotPrepare where it was made with other settings.
    """
    try:
        marker = json.loads(request.marker.read_text(encoding="utf-8"))
        result = PreparationResult.from_json(marker["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for suffix, length in ((".bin", result.bin_bytes), (".idx", result.idx_bytes)):
        path = Path(str(request.data) + suffix)
        if not path.is_file() or path.stat().st_size != length:
            return None
    if marker["settings"] != request.settings():
        raise CannotPrepare(
            ExitCode.USAGE,
            f"{request.marker} was made with {json.dumps(marker['settings'])}, asked for is "
            f"{json.dumps(request.settings())}; remove it or choose another --output-prefix",
        )
    return result


def _tokenizer(request: Request, files: Sequence[Path]) -> Any:
    from megatron_trainer.data import tokenizer

    try:
        if not tokenizer.exists(request.tokenizer_dir):
            started = time.monotonic()
            _log(f"training a byte-level BPE of {request.tokenizer_vocab_size} entries on {len(files)} files")
            tokenizer.train(documents(files), request.tokenizer_vocab_size, request.tokenizer_dir)
            _log(f"trained in {time.monotonic() - started:.1f} s: {request.tokenizer_dir}")
        loaded, eod = tokenizer.load(request.tokenizer_dir)
    except tokenizer.TokenizerMissing as error:
        raise CannotPrepare(ExitCode.BAD_DATA, str(error)) from error
    if request.append_eod and eod is None:
        raise CannotPrepare(
            ExitCode.BAD_DATA,
            f"--append-eod: the tokenizer in {request.tokenizer_dir} has no eos_token; name one or leave "
            "the flag out",
        )
    return loaded, eod if request.append_eod else None


def build(request: Request) -> PreparationResult:
    """Make the corpus. Both files appear at the end, by renaming, and then the marker."""
    files = files_of(request)
    request.output_prefix.parent.mkdir(parents=True, exist_ok=True)
    tokenizer, eod = _tokenizer(request, files)

    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    part = request.data.with_name(f".{request.data.name}.{os.getpid()}")
    builder = IndexedDatasetBuilder(f"{part}.bin", dtype=DType.optimal_dtype(tokenizer.get_vocab_size()))
    count = tokens = 0
    started = told = time.monotonic()
    for texts in batched(documents(files), _BATCH):
        for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
            ids = encoding.ids if eod is None else [*encoding.ids, eod]
            if not ids:
                continue
            builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
            count += 1
            tokens += len(ids)
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told = time.monotonic()
            _log(f"{count} documents, {tokens} tokens, {tokens / (told - started):.0f} tokens/s")
    if not tokens:
        raise CannotPrepare(ExitCode.BAD_DATA, f"the {len(files)} files under {request.source} hold no text")
    builder.finalize(f"{part}.idx")
    sizes = []
    for suffix in (".bin", ".idx"):
        path = Path(f"{part}{suffix}")
        sizes.append(path.stat().st_size)
        path.replace(Path(f"{request.data}{suffix}"))
    result = PreparationResult(count, tokens, tokenizer.get_vocab_size(), str(request.data), *sizes)
    mark = request.marker.with_name(f".{request.marker.name}.{os.getpid()}")
    mark.write_text(json.dumps({"settings": request.settings(), "result": result.to_json()}, indent=2) + "\n")
    mark.replace(request.marker)
    return result


def _run(argv: Sequence[str]) -> tuple[ExitCode, str, PreparationResult | None]:
    try:
        request = read_request(argv)
        # The Rust side reads these once, when it is first used.
        os.environ["RAYON_NUM_THREADS"] = str(request.workers)
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if request.workers > 1 else "false"
        result = finished(request)
        what = "was there already" if result else "is made"
        result = result or build(request)
    except CannotPrepare as error:
        return error.code, str(error), None
    except PermissionError as error:
        return ExitCode.BAD_DATA, f"cannot write {error.filename}: give user {os.getuid()} the right to", None
    except OSError as error:
        return ExitCode.WORKER_DIED, f"{error.strerror}: {error.filename}", None
    text = f"{result.data_path} {what}: {result.documents} documents, {result.tokens} tokens"
    return ExitCode.OK, text, result


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Prepare the corpus and exit as the contract says, with the result as JSON on the termination log."""
    code, message, result = _run(sys.argv[1:] if argv is None else argv)
    _log(f"{REASONS[code]} (exit {int(code)}): {message}")
    fields = TerminationMessage.of(code, message).to_json() | (result.to_json() if result else {})
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    try:
        path = Path(os.environ.get(environment.ENV_TERMINATION_LOG, environment.DEFAULT_TERMINATION_LOG))
        path.write_text(text)
    except OSError:
        _log(text)
    sys.exit(int(code))


if __name__ == "__main__":
    main()

"""`megatron-prepare`: converts a folder of text to the files that Megatron trains on, once.

    megatron-prepare --source /corpus --include '**/*.py' --output-prefix /data/code \\
        --tokenizer-dir /data/tokenizer --tokenizer-vocab-size 4096 --append-eod

Each file is one document; each line of a .jsonl file is one, under "text". Other files that are not UTF-8
text are left out, and counted. Writes NAME_text_document.bin and .idx with Megatron's own builder, then
NAME.prepared.json, which marks the result as finished. With Megatron's flags of the run after `--`, the index
of the run's samples is built too (dataset_index.py).

With --sources instead of --source it prepares what `data.sources` of a recipe lists (sources_command.py),
with --chats, --images, --sound or --media what to fine-tune on (chats_command.py). With --check-blend or
--check-root it checks what was prepared elsewhere (check_command.py).
"""

import errno
import glob
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from megatron_contract import environment
from megatron_contract.exit_codes import REASONS, ExitCode
from megatron_contract.preparation import PreparationResult
from megatron_contract.termination import TerminationMessage

from megatron_trainer.data.folder_tokenizer import load_tokenizer
from megatron_trainer.data.index_process import build_index, use_threads
from megatron_trainer.data.log import log
from megatron_trainer.data.patterns import is_prepared, left_out, may_not_read
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.prepare_options import PrepareOptions, parse_options, split_flags
from megatron_trainer.data.unused_files import remove_unused
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.secret_values import name_secret_variables, scrub
from megatron_trainer.volume_paths import left_volume

if TYPE_CHECKING:
    from megatron_trainer.data.shards import Encoder

# The fields of a recipe, and the flags by which a user calls the command.
_SOURCE = "data.prepare.source (--source)"
_INCLUDE = "data.prepare.include (--include)"
_NAME = "data.prepare.name (--output-prefix)"
_NAMED = 4
"""Files that the log names at most."""
_SUFFIXES = (".bin", ".idx")
_PROGRESS_SECONDS = 5.0


def find_files(options: PrepareOptions) -> list[Path]:
    """Return the files to read, sorted, without duplicates, and without what was prepared before.

    Raises PreparationError if there are none, for one that a glob matches and that cannot be read, and for a
    link that leads out of the source's volume.
    """
    if not options.source.is_dir():
        raise PreparationError(
            ExitCode.BAD_DATA, f"{_SOURCE}: {options.source} is not a folder; mount the text there"
        )
    for each in options.include:
        if problem := left_out(options.source, each):
            raise PreparationError(ExitCode.BAD_DATA, problem)
    files = sorted(
        {
            path
            for pattern in options.include
            for path in options.source.glob(pattern)
            if path.is_file() and not is_prepared(path, options.source / pattern)
        }
    )
    if not files:
        raise PreparationError(
            ExitCode.BAD_DATA,
            f"{_INCLUDE}: no file under {options.source} matches {' or '.join(options.include)}; correct it, "
            "or copy the text there",
        )
    for path in (options.output_prefix, options.tokenizer_dir, *files):
        if problem := left_volume(path):
            raise PreparationError(ExitCode.BAD_DATA, problem)
    if closed := next(filter(may_not_read, files), None):
        raise PreparationError(ExitCode.BAD_DATA, _not_permitted(closed))
    return files


def _denied(error: PermissionError) -> str:
    """What this user may not do, and the fix; an error of a library may not name the file."""
    if error.filename is None:
        return f"{error}; let user {os.geteuid()} read the sources, and write to the data volume"
    return _not_permitted(Path(str(error.filename)))


def _not_permitted(path: Path) -> str:
    """What this user may not do with a file, and the fix."""
    verb = "read" if may_not_read(path) else "write"
    return f"cannot {verb} {path}: make it {verb.removesuffix('e')}able for user {os.geteuid()}"


def read_documents(files: Sequence[Path], binary: list[Path] | None = None) -> Iterator[str]:
    """Yield the documents in order. Files that are empty or not UTF-8 text are skipped.

    The latter are added to `binary`. Of a .jsonl file one line is held at a time. Raises PreparationError for
    a line of it that is not UTF-8, or without text.
    """
    for path in files:
        if path.suffix == ".jsonl":
            yield from _json_lines(path)
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            if binary is not None:
                binary.append(path)
            continue
        if text.strip():
            yield text


def _json_lines(path: Path) -> Iterator[str]:
    from megatron_trainer.data.documents import lone_surrogate

    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path} line {number}"
            try:
                text = json.loads(line.decode("utf-8"))["text"]
            except UnicodeDecodeError as error:
                wrong = f"{place} is not UTF-8 at byte {error.start}; convert it, for example with iconv"
                raise PreparationError(ExitCode.BAD_DATA, wrong) from error
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise PreparationError(
                    ExitCode.BAD_DATA, f'{place} is not an object with "text": {error!r}'
                ) from error
            if text is None:
                continue
            if not isinstance(text, str):
                kind = type(text).__name__
                raise PreparationError(
                    ExitCode.BAD_DATA, f'"text" at {place} is of type {kind}, not a string; correct the line'
                )
            if b"\\u" in line and (problem := lone_surrogate(text)):
                raise PreparationError(ExitCode.BAD_DATA, f"{place} {problem}")
            yield text


def find_result(options: PrepareOptions) -> PreparationResult | None:
    """Return the result of an earlier call, None if there is none or its files are incomplete.

    Raises PreparationError if it was built with other settings, or no call of this command wrote its files.
    """
    # Before the marker, which another pod writes before its files.
    there = [path for suffix in _SUFFIXES if (path := Path(f"{options.data}{suffix}")).exists()]
    try:
        marker = json.loads(options.marker.read_text(encoding="utf-8"))
        result = PreparationResult.from_json(marker["result"])
    except FileNotFoundError as error:
        if not there:
            return None
        raise PreparationError(
            ExitCode.USAGE,
            f"{_NAME}: {there[0]} was not prepared here, or {options.marker.name} beside it was removed; set "
            f"another name, or, if no run reads them, delete {options.data.name}.bin and .idx",
        ) from error
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for suffix, length in zip(_SUFFIXES, (result.bin_bytes, result.idx_bytes), strict=True):
        path = Path(str(options.data) + suffix)
        if not path.is_file() or path.stat().st_size != length:
            return None
    # Earlier releases wrote a size also beside a tokenizer that was named, where it has no effect.
    kept = {name: marker["settings"].get(name) for name in options.settings()}
    if kept != options.settings():
        raise PreparationError(
            ExitCode.USAGE,
            f"{_NAME}: {options.marker} was built with {json.dumps(marker['settings'])}, requested is "
            f"{json.dumps(options.settings())}; set another name, or, if no run reads them, delete it and "
            f"{options.data.name}.bin and .idx",
        )
    return result


def _tokenizer(options: PrepareOptions, files: Sequence[Path]) -> tuple[Any, int | None]:
    from megatron_trainer.data import tokenizer

    size = options.tokenizer_vocab_size
    try:
        if not tokenizer.exists(options.tokenizer_dir):
            if size is None:
                raise PreparationError(
                    ExitCode.BAD_DATA,
                    f"{options.tokenizer_dir} has no tokenizer.json; copy the tokenizer there, in the fast "
                    "format of transformers, or have one trained: leave out data.tokenizer of the recipe",
                )
            started = time.monotonic()
            log(f"training a byte-level BPE of {size} entries on {len(files)} files")
            tokenizer.train(read_documents(files), size, options.tokenizer_dir)
            log(f"trained in {time.monotonic() - started:.1f} s: {options.tokenizer_dir}")
    except tokenizer.TokenizerError as error:
        raise PreparationError(ExitCode.BAD_DATA, str(error)) from error
    return load_tokenizer(options)


def build(options: PrepareOptions) -> PreparationResult:
    """Build the corpus. Both files are renamed into place at the end, then the marker gets the result.

    Raises PreparationError or OSError.
    """
    files = find_files(options)
    options.output_prefix.parent.mkdir(parents=True, exist_ok=True)
    tokenizer, eod = _tokenizer(options, files)

    from megatron_trainer.data.shards import Encoder, temporary

    part = temporary(options.data)
    vocabulary = tokenizer.get_vocab_size()
    try:
        count, tokens, binary = _write(part, options, files, Encoder(tokenizer, vocabulary, eod))
        # Another pod may have been faster, also one of another recipe.
        if (found := find_result(options)) is not None:
            return found
        # What has no marker is not replaced: one that is killed here leaves its files with one.
        _mark(options, None)
        sizes = []
        for suffix in _SUFFIXES:
            path = Path(f"{part}{suffix}")
            sizes.append(path.stat().st_size)
            path.replace(Path(f"{options.data}{suffix}"))
        result = PreparationResult(count, tokens, vocabulary, str(options.data), sizes[0], sizes[1], binary)
        _mark(options, result)
    finally:
        for suffix in _SUFFIXES:
            Path(f"{part}{suffix}").unlink(missing_ok=True)
    # Of pods that were killed. One that still writes finds this result instead.
    for suffix in _SUFFIXES:
        for leftover in options.data.parent.glob(f".{glob.escape(options.data.name)}.*{suffix}"):
            leftover.unlink(missing_ok=True)
    return result


def _mark(options: PrepareOptions, result: PreparationResult | None) -> None:
    from megatron_trainer.data.shards import temporary

    part = temporary(options.marker)
    content = {"settings": options.settings(), "result": None if result is None else result.to_json()}
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(options.marker)


def _write(
    part: Path, options: PrepareOptions, files: Sequence[Path], encoder: "Encoder"
) -> tuple[int, int, int]:
    """Write the corpus as PART.bin and PART.idx. Returns documents, tokens, and files that are not text."""
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    from megatron_trainer.data.fast_encoder import FastEncoder

    builder = IndexedDatasetBuilder(f"{part}.bin", dtype=DType.optimal_dtype(encoder.vocabulary))
    fast = FastEncoder(encoder, options.tokenizer_dir, options.workers, log)
    count = tokens = 0
    binary: list[Path] = []
    started = logged_at = time.monotonic()
    for ids in fast.encode(read_documents(files, binary)):
        builder.add_document(torch.from_numpy(ids), [len(ids)])
        count += 1
        tokens += len(ids)
        if time.monotonic() - logged_at > _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            log(f"{count} documents, {tokens} tokens, {tokens / (logged_at - started):.0f} tokens/s")
    if not tokens:
        raise PreparationError(
            ExitCode.BAD_DATA, f"the {len(files)} files under {options.source} contain no text"
        )
    builder.finalize(f"{part}.idx")
    if binary:
        names = ", ".join(map(str, binary[:_NAMED])) + (", ..." if len(binary) > _NAMED else "")
        log(f"{len(binary)} files are not UTF-8 text and are left out: {names}")
    return count, tokens, len(binary)


def _from_folder(argv: Sequence[str]) -> tuple[str, PreparationResult]:
    options = parse_options(argv)
    use_threads(options.workers)
    result = find_result(options)
    what = "already exists" if result else "is built"
    # Of other recipes, or of a pod of this one that was killed.
    was_there = result is None and (options.tokenizer_dir / "tokenizer.json").is_file()
    result = result or build(options)
    text = f"{result.data_path} {what}: {result.documents} documents, {result.tokens} tokens"
    if was_there and options.tokenizer_vocab_size not in (None, result.vocab_size):
        text += (
            f"; the tokenizer that was in {options.tokenizer_dir} already has {result.vocab_size:,} entries"
        )
        text += f", not {options.tokenizer_vocab_size:,}"
    if result.left_out:
        text += f"; {result.left_out} files are not UTF-8 text and are left out"
    if options.megatron_flags:
        from megatron_trainer.data import check

        needs = check.parse_needs(options.megatron_flags, None, None)
        if needs is not None:
            if problem := check.empty_split(needs, result.documents):
                raise PreparationError(ExitCode.BAD_DATA, f"data.prepare.source: {problem}")
            times = check.times_read(options.data, result.documents, needs)
            text = f"{text}; the run reads those for training {check.show_times(times)}"
        text = f"{text}; {build_index(options.megatron_flags, options.index_dir)}"
    return text, result


def _run(argv: Sequence[str]) -> tuple[ExitCode, str, PreparationResult | None]:
    result: PreparationResult | None
    try:
        if "--sources" in split_flags(argv)[0]:
            from megatron_trainer.data import sources_command

            text, result = sources_command.run(argv)
        elif {"--check-blend", "--check-root"} & {*split_flags(argv)[0]}:
            from megatron_trainer.data import check_command

            text, result = check_command.run(argv), None
        elif {"--chats", "--images", "--sound", "--media"} & {*argv}:
            from megatron_trainer.data import chats_command

            text, result = chats_command.run(argv), None
        else:
            text, result = _from_folder(argv)
    except PreparationError as error:
        return error.code, str(error), None
    except PermissionError as error:
        return ExitCode.BAD_DATA, _denied(error), None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = "spec.data.volume: no space is left on the data volume; enlarge it, or delete old datasets"
            return ExitCode.BAD_DATA, text, None
        where = f": {error.filename}" if error.filename else ""
        return ExitCode.WORKER_DIED, f"{error.strerror or error}{where}", None
    except Exception as error:  # what a library raises for an error of the volume
        if not is_temporary(error):
            raise
        return ExitCode.WORKER_DIED, " ".join(str(error).split()), None
    return ExitCode.OK, text, result


def terminate(_signal: int, _frame: object) -> NoReturn:
    """Handle SIGTERM, which the first process of a container ignores without a handler: end at once.

    An edited recipe may have another pod prepare by now.
    """
    sys.exit(int(ExitCode.TERMINATED))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Prepare the corpus and exit with a code of the contract, with the result on the termination log."""
    signal.signal(signal.SIGTERM, terminate)
    name_secret_variables()
    remove_unused()
    code, message, result = _run(sys.argv[1:] if argv is None else argv)
    message = scrub(message)
    log(f"{REASONS[code]} (exit {int(code)}): {message}")
    text = TerminationMessage.of(code, message).dumps(**(result.to_json() if result else {}))
    try:
        path = Path(os.environ.get(environment.ENV_TERMINATION_LOG, environment.DEFAULT_TERMINATION_LOG))
        path.write_text(text, encoding="utf-8")
    except OSError:
        log(text)
    sys.exit(int(code))


if __name__ == "__main__":
    main()

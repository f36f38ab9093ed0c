"""Sources of a corpus: which files or objects a path means, and how their documents are divided into shards.

A shard is a byte range of a file of lines, a file that must be read from its start (compressed, arrow), some
row groups of a Parquet file, or some text files. The division depends on the files alone, never on the number
of workers.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data import objects
from megatron_trainer.data.compression import file_error, is_compressed
from megatron_trainer.data.files import SourceFile, path_of, size_of, version_of
from megatron_trainer.data.media import IMAGES, Medium
from megatron_trainer.data.objects import AWS, NoObjectError, ObjectError, Store, StoredObject
from megatron_trainer.data.patterns import fixed, is_prepared, left_out
from megatron_trainer.data.preparation_error import NoFilesError, PreparationError
from megatron_trainer.volume_paths import left_volume

Format = Literal["jsonl", "chat", "text", "parquet", "hf", "webdataset"]
SHARD_BYTES = 64 << 20
"""Bytes of the source, uncompressed, that one shard reads at most: what a killed worker repeats."""
# A range of an object, which is read as a whole (objects.py).
_SMALLEST_SHARD = 8 << 20
# So many shards divide well among workers of different speed.
_SHARDS = 64
LONGEST_DOCUMENT = 16 << 20
"""Bytes of a document: it is held in memory, and tokenizing it takes about 140 times as much."""
_PARQUET_BUFFER = 1 << 20
# What ends a stream of Arrow's IPC format; its reader also takes a file that was cut between two batches.
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class Source:
    """One entry of `data.sources`.

    `documents` is the number of documents that are taken at most, `output` the dataset's prefix; `store` has
    the objects of a path that begins with s3://.
    """

    name: str
    path: str
    format: Format
    output: Path
    key: str = "text"
    documents: int | None = None
    store: Store = AWS
    validation: bool = False
    """All of it is for validation; of chats, and samples."""
    media: tuple[Medium, ...] = IMAGES
    """What samples of a WebDataset have beside text."""
    weight: float = 1.0
    """Share of a run that fine-tunes, relative to the other sources."""

    @property
    def is_text(self) -> bool:
        """Whether it has documents, not conversations."""
        return self.format not in ("chat", "webdataset")

    def refuse(self, setting: str, problem: str, code: ExitCode = ExitCode.BAD_DATA) -> PreparationError:
        """Return the error of one of its settings."""
        return PreparationError(code, f"{self.name}.{setting}: {problem}")

    def has_no_files(self, problem: str) -> NoFilesError:
        """Return the error of a path that nothing matches."""
        return NoFilesError(ExitCode.BAD_DATA, f"{self.name}.path: {problem}")


@dataclass(frozen=True)
class Shard:
    """Part of a source: `start` and `end` are bytes of a file of lines, or row groups of a Parquet file.

    `size` is how many bytes of the files it reads.
    """

    files: tuple[SourceFile, ...]
    size: int
    start: int = 0
    end: int | None = None


def parse_sources(text: str, store: Store = AWS) -> list[Source]:
    """Parse the value of --sources; `store` has the objects. Raises PreparationError with USAGE."""
    try:
        found = [
            Source(
                f"data.sources[{index}]",
                str(entry["path"]),
                entry["format"],
                Path(entry["output"]),
                str(entry.get("key", "text")),
                entry.get("documents"),
                store,
            )
            for index, entry in enumerate(json.loads(text))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreparationError(ExitCode.USAGE, f"--sources is not a list of sources: {error!r}") from error
    for source in found:
        if source.format not in get_args(Format):
            raise PreparationError(
                ExitCode.USAGE,
                f"{source.name}.format is {source.format!r}; use {', '.join(get_args(Format))}",
            )
    if not found:
        raise PreparationError(ExitCode.USAGE, "--sources is empty; name at least one source")
    return found


def find_files(source: Source) -> list[SourceFile]:
    """Return the files or objects of a source in the order in which they are read.

    Hidden files are left out, as by a shell, unless the pattern names them: copies in progress are such. What
    was prepared is left out too, unless the pattern names its folder.

    Raises NoFilesError if there are none, PreparationError for one that the pattern matches and that cannot
    be read, and for a link that leads out of the source's volume.
    """
    if source.path.startswith(objects.SCHEME):
        return list(_objects(source))
    files = _arrow_files(source) if source.format == "hf" else _matches(source)
    for path in files:
        if problem := left_volume(path):
            raise source.refuse("path", problem)
    return list(files)


def _objects(source: Source) -> list[StoredObject]:
    if source.format == "hf":
        raise source.refuse("format", "hf is not read from object storage; write Parquet there (to_parquet)")
    with _named(source):
        try:
            return objects.find(source.store, source.path)
        except ValueError as error:
            raise _no_pattern(source, error) from error


@contextmanager
def _named(source: Source) -> Iterator[None]:
    """Name the source in the errors of its objects."""
    try:
        yield
    except NoObjectError as error:
        raise source.has_no_files(str(error)) from error
    except ObjectError as error:
        raise source.refuse("path", str(error), error.code) from error


def _no_pattern(source: Source, error: ValueError) -> PreparationError:
    return source.refuse("path", f"{source.path} is not a pattern: {error}; write ** alone")


def _matches(source: Source) -> list[Path]:
    path = Path(source.path)
    if path.is_file():  # also a name with brackets
        return [path]
    if path.is_dir():
        raise source.refuse("path", f"{path} is a folder; name its files: {path}/*")
    root = Path(path.anchor)
    try:
        found = {each for each in root.glob(str(path.relative_to(root))) if each.is_file()}
    except ValueError as error:
        raise _no_pattern(source, error) from error
    hidden = any(part.startswith(".") for part in path.parts)
    named = len(fixed(path).parts)
    files = sorted(
        each
        for each in found
        if (hidden or not any(part.startswith(".") for part in each.parts[named:]))
        and not is_prepared(each, path)
    )
    if problem := left_out(root, str(path.relative_to(root))):
        raise source.refuse("path", problem)
    if not files:
        raise source.has_no_files(f"no file matches {source.path}; {_nearest(path)}")
    return files


def _nearest(path: Path) -> str:
    """What is there instead of a path without files."""
    folder = fixed(path)
    missing = None
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    if missing is not None:
        return f"{missing} does not exist; copy the files to the data volume, or correct the path"
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{folder} has {shown or 'nothing'}; correct the path (** crosses folders)"


def _arrow_files(source: Source) -> list[Path]:
    folder = Path(source.path)
    if not folder.is_dir():
        raise source.has_no_files(f"{folder} is not a folder; format hf reads what save_to_disk wrote")
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        named = f"{folder}/{splits[0]}" if splits else "none is there, copy it again"
        raise source.refuse("path", f"{folder} has several splits; name one: {named}")
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        selected = state.get("_indices_data_files")
    except FileNotFoundError:
        names, selected = sorted(path.name for path in folder.glob("*.arrow")), None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise source.refuse("path", f"{folder}/state.json is not of a saved dataset: {error!r}") from error
    if selected:
        problem = f"{folder} selects rows of its files by an index, which is not read"
        raise source.refuse("path", f"{problem}; call flatten_indices() before save_to_disk")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise source.refuse("path", f"{folder} lacks {missing[0]}, which its state.json names; copy it again")
    if not names:
        raise source.has_no_files(f"{folder} has no .arrow files; for Parquet set format: parquet and a glob")
    return [folder / name for name in names]


def check_column(source: Source, path: SourceFile, schema: Any) -> None:
    """Raise PreparationError unless the column of the source is in the schema, and of strings."""
    import pyarrow as pa

    if source.key not in schema.names:
        there = ", ".join(schema.names[:16])
        raise source.refuse("column", f"{path} has no column {source.key}; it has {there}")
    kind = schema.field(source.key).type
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(text) or pa.types.is_large_string(text) or pa.types.is_string_view(text)):
        names = [field.name for field in schema if field.type in (pa.string(), pa.large_string())]
        fix = f"set column to one of {', '.join(names[:16])}" if names else "convert it"
        raise source.refuse("column", f"column {source.key} of {path} is {kind}, not string; {fix}")


def content_digest(source: Source, files: Sequence[SourceFile], tokenizer: str, eod: int | None) -> str:
    """Digest of all that the dataset depends on; a file counts by path, size and time of change or ETag.

    `tokenizer` is the tokenizer's digest, `eod` the token id that is appended to each document. SHARD_BYTES
    is in it for the datasets of earlier releases; how a source is divided does not change a dataset.
    """
    stats = [(str(path), size_of(path), version_of(path)) for path in files]
    depends = [1, SHARD_BYTES, source.format, source.key, source.documents, tokenizer, eod, stats]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]


def divide(source: Source, files: Sequence[SourceFile]) -> list[Shard]:
    """Divide a source into shards, in the order of its documents. Raises PreparationError."""
    size = min(SHARD_BYTES, max(_SMALLEST_SHARD, sum(map(size_of, files)) // _SHARDS))
    if source.format == "text":
        return list(_groups(source, files, size))
    if source.format == "parquet":
        return [shard for path in files for shard in _row_groups(source, path, size)]
    if source.format == "hf":
        return [_arrow_shard(source, path_of(path)) for path in files]
    if source.format == "webdataset":
        return [_tar(source, path) for path in files]
    return [shard for path in files for shard in _byte_ranges(path, size)]


def _tar(source: Source, path: SourceFile) -> Shard:
    if isinstance(path, StoredObject):
        raise source.refuse(
            "path", f"{path} is in object storage; copy it to the data volume: the run reads it"
        )
    if is_compressed(path):
        raise source.refuse("path", f"{path} is compressed; the run reads samples by their place: unpack it")
    return Shard((path,), size_of(path))


def _byte_ranges(path: SourceFile, most: int) -> Iterator[Shard]:
    size = size_of(path)
    if is_compressed(path):
        yield Shard((path,), size)
        return
    for start in range(0, size, most):
        end = min(start + most, size)
        yield Shard((path,), end - start, start, end)


def too_long() -> str:
    """Return what is wrong with a text file that is too large, and the fix."""
    most = f"{LONGEST_DOCUMENT >> 20} MiB"
    return f"is longer than {most}; a text file is one document: divide it, or convert it to JSON lines"


def _groups(source: Source, files: Sequence[SourceFile], most: int) -> Iterator[Shard]:
    group: list[SourceFile] = []
    total = 0
    for path in files:
        size = size_of(path)
        if size > LONGEST_DOCUMENT and not is_compressed(path):
            raise source.refuse("path", f"{path} {too_long()}")
        if group and total + size > most:
            yield Shard(tuple(group), total)
            group, total = [], 0
        group.append(path)
        total += size
    if group:
        yield Shard(tuple(group), total)


@contextmanager
def whole(source: Source, path: SourceFile) -> Iterator[None]:
    """Turn the error of a file that is cut off, of another format or not readable into one that names it."""
    try:
        yield
    except ObjectError as error:
        raise source.refuse("path", str(error), error.code) from error
    except PreparationError:
        raise
    except PermissionError as error:
        fix = f"make it readable for user {os.getuid()}"
        raise source.refuse("path", f"{path} cannot be read; {fix}") from error
    except FileNotFoundError as error:
        problem = f"{path} was removed while it was prepared; copy it back, or correct the path"
        raise source.refuse("path", problem) from error
    except Exception as error:
        if broken := file_error(error):
            raise source.refuse("path", f"{path} {broken}") from error
        raise


@contextmanager
def open_parquet(path: SourceFile) -> Iterator[Any]:
    """Open a Parquet file: a pyarrow.parquet.ParquetFile. Raises ObjectError, and what pyarrow raises."""
    import pyarrow.parquet as pq

    # Otherwise pyarrow holds the column of a whole row group, which may be the whole file.
    piecewise = {"pre_buffer": False, "buffer_size": _PARQUET_BUFFER}
    if isinstance(path, StoredObject):
        with path.open() as stream, pq.ParquetFile(stream, **piecewise) as file:
            yield file
    else:
        with pq.ParquetFile(path, **piecewise) as file:
            yield file


def _row_groups(source: Source, path: SourceFile, most: int) -> Iterator[Shard]:
    import pyarrow as pa

    with whole(source, path):
        try:
            with open_parquet(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except pa.ArrowException as error:
            raise source.refuse("path", f"{path} is not a Parquet file: {error}; copy it again") from error
    check_column(source, path, schema)
    start = total = 0
    for index in range(metadata.num_row_groups):
        size = metadata.row_group(index).total_byte_size
        if index > start and total + size > most:
            yield Shard((path,), total, start, index)
            start, total = index, 0
        total += size
    if metadata.num_row_groups:
        yield Shard((path,), total, start, metadata.num_row_groups)


def _arrow_shard(source: Source, path: Path) -> Shard:
    import pyarrow as pa

    with whole(source, path):
        try:
            with path.open("rb") as raw:
                raw.seek(max(0, path.stat().st_size - len(_ARROW_END)))
                end = raw.read()
            with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
                check_column(source, path, stream.schema)
        except pa.ArrowException as error:
            problem = f"{path} is not an Arrow stream as save_to_disk writes it: {error}; copy it again"
            raise source.refuse("path", problem) from error
    if end != _ARROW_END:
        raise source.refuse("path", f"{path} is not whole: the end of its stream is missing; copy it again")
    return Shard((path,), path.stat().st_size)

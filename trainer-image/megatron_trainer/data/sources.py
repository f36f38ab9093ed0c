"""Sources of a corpus: which files a path means, and how their documents are divided into shards.

A shard is a byte range of a file of lines, a file that must be read from its start (compressed, arrow), some
row groups of a Parquet file, or some text files. The division depends on the files alone, never on the number
of workers.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.volume_paths import left_volume

Format = Literal["jsonl", "chat", "text", "parquet", "hf"]
SHARD_BYTES = 64 << 20
"""Bytes of the source, uncompressed, that one shard reads: the most that a killed worker repeats."""
LONGEST_TEXT_FILE = 128 << 20
"""Bytes of a text file, which is one document and is held in memory."""
COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True)
class Source:
    """One entry of `data.sources`: `documents` is the most that are taken, `output` the dataset's prefix."""

    name: str
    path: str
    format: Format
    output: Path
    key: str = "text"
    documents: int | None = None

    def refuse(self, setting: str, problem: str) -> PreparationError:
        """Return the error of one of its settings."""
        return PreparationError(ExitCode.BAD_DATA, f"{self.name}.{setting}: {problem}")


@dataclass(frozen=True)
class Shard:
    """Part of a source: `start` and `end` are bytes of a file of lines, or row groups of a Parquet file."""

    files: tuple[Path, ...]
    start: int = 0
    end: int | None = None


def parse_sources(text: str) -> list[Source]:
    """Parse the value of --sources. Raises PreparationError with USAGE."""
    try:
        found = [
            Source(
                f"data.sources[{index}]",
                str(entry["path"]),
                entry["format"],
                Path(entry["output"]),
                str(entry.get("key", "text")),
                entry.get("documents"),
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


def find_files(source: Source) -> list[Path]:
    """Return the files of a source in the order in which they are read.

    Raises PreparationError if there are none, and for a link that leads out of the source's volume.
    """
    if source.format == "hf":
        files = _arrow_files(source)
    else:
        root = Path(Path(source.path).anchor)
        found = set(root.glob(str(Path(source.path).relative_to(root))))
        files = sorted(path for path in found if path.is_file())
        if not files:
            fix = "mount it on the data volume, or correct the pattern (** crosses folders)"
            raise source.refuse("path", f"no file matches {source.path}; {fix}")
    for path in files:
        if problem := left_volume(path):
            raise source.refuse("path", problem)
    return files


def _arrow_files(source: Source) -> list[Path]:
    folder = Path(source.path)
    if not folder.is_dir():
        raise source.refuse("path", f"{folder} is not a folder; format hf reads what save_to_disk wrote")
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        raise source.refuse("path", f"{folder} has several splits; name one: {folder}/{splits[0]}")
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
    except FileNotFoundError:
        names = sorted(path.name for path in folder.glob("*.arrow"))
    except (ValueError, KeyError, TypeError) as error:
        raise source.refuse("path", f"{folder}/state.json is not of a saved dataset: {error!r}") from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise source.refuse("path", f"{folder} lacks {missing[0]}, which its state.json names; copy it again")
    if not names:
        raise source.refuse(
            "path", f"{folder} has no .arrow files; for Parquet set format: parquet and a glob"
        )
    return [folder / name for name in names]


def content_digest(source: Source, files: Sequence[Path], tokenizer: str, eod: int | None) -> str:
    """Digest of all that the dataset depends on; a file counts by path, size and time of change."""
    stats = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    depends = [1, SHARD_BYTES, source.format, source.key, source.documents, tokenizer, eod, stats]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:32]


def divide(source: Source, files: Sequence[Path]) -> list[Shard]:
    """Divide a source into shards, in the order of its documents. Raises PreparationError."""
    if source.format == "text":
        return list(_groups(source, files))
    if source.format == "parquet":
        return [shard for path in files for shard in _row_groups(source, path)]
    if source.format == "hf":
        return [Shard((path,)) for path in files]
    return [shard for path in files for shard in _byte_ranges(path)]


def _byte_ranges(path: Path) -> Iterator[Shard]:
    if path.suffix in COMPRESSIONS:
        yield Shard((path,))
        return
    size = path.stat().st_size
    for start in range(0, size, SHARD_BYTES):
        yield Shard((path,), start, min(start + SHARD_BYTES, size))


def _groups(source: Source, files: Sequence[Path]) -> Iterator[Shard]:
    group: list[Path] = []
    total = 0
    for path in files:
        size = path.stat().st_size
        if size > LONGEST_TEXT_FILE:
            fix = "a text file is one document; split it, or convert it to JSON lines"
            raise source.refuse("path", f"{path} has {size:,} bytes, at most {LONGEST_TEXT_FILE:,}; {fix}")
        if group and total + size > SHARD_BYTES:
            yield Shard(tuple(group))
            group, total = [], 0
        group.append(path)
        total += size
    if group:
        yield Shard(tuple(group))


def _row_groups(source: Source, path: Path) -> Iterator[Shard]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.ParquetFile(path).metadata
    except pa.ArrowException as error:
        raise source.refuse("path", f"{path} is not a Parquet file: {error}") from error
    start = total = 0
    for index in range(metadata.num_row_groups):
        size = metadata.row_group(index).total_byte_size
        if index > start and total + size > SHARD_BYTES:
            yield Shard((path,), start, index)
            start, total = index, 0
        total += size
    if metadata.num_row_groups:
        yield Shard((path,), start, metadata.num_row_groups)

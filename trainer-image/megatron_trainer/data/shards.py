"""Tokenizes shards, and joins them to the two files of a dataset.

Each file is written beside its name and renamed, so what is there is whole, whoever was killed. Two workers
that build the same shard write the same bytes.
"""

import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from megatron_contract.environment import ENV_RUN_ID

from megatron_trainer.data.indexed_files import HEADER, MAGIC

_BATCH_DOCUMENTS = 256
# The tokenizer takes about 140 bytes for each.
_BATCH_CHARACTERS = 1 << 20


class RecordEncoder(Protocol):
    """Makes the records of a shard: arrays of `dtype`."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements of all records."""

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the record of each text, an array of shape [elements]."""


class TokenEncoder(RecordEncoder, Protocol):
    """A tokenizer: the records are ids below `vocabulary`."""

    @property
    def vocabulary(self) -> int:
        """The smallest number that is larger than all ids."""

    @property
    def eod(self) -> int | None:
        """The id that is appended to each document; None for none."""


@dataclass(frozen=True)
class Encoder:
    """A tokenizer of the library `tokenizers` with a vocabulary of `vocabulary` entries.

    `eod` is the id that is appended to each document where it is set.
    """

    tokenizer: Any
    vocabulary: int
    eod: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that Megatron gives ids of a vocabulary of this size."""
        return id_type(self.vocabulary)

    def encode(self, texts: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the ids of each text that has some, an array of shape [tokens]."""
        for batch in batches(texts):
            for encoding in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                ids = encoding.ids
                if ids and self.eod is not None:
                    ids.append(self.eod)
                if ids:
                    yield np.array(ids, dtype=self.dtype)


def id_type(vocabulary: int) -> np.dtype[Any]:
    """Return the type that Megatron gives ids below `vocabulary` (DType.optimal_dtype)."""
    return np.dtype(np.uint16 if vocabulary < 65500 else np.int32)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of a bounded size, which the tokenizer divides among its threads."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _BATCH_DOCUMENTS or characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def temporary(path: Path) -> Path:
    """Return a name beside `path` that no other pod or process writes.

    Pods of an indexed Job have the name of their recipe, which may exist in several namespaces: the beginning
    of its UID is of one.
    """
    run = os.environ.get(ENV_RUN_ID, "")[:8]
    return path.with_name(f".{path.name}.{run}.{socket.gethostname()}.{os.getpid()}")


def lengths_file(folder: Path, number: int) -> Path:
    """Return the file that marks a shard as complete: the number of tokens of each document."""
    return folder / f"{number:06d}.lengths"


def records_file(folder: Path, number: int) -> Path:
    """Return the file with the records of a shard."""
    return folder / f"{number:06d}.tokens"


def write_shard(
    folder: Path, number: int, texts: Iterable[str], encoder: RecordEncoder, limit: int | None
) -> int:
    """Tokenize a shard, at most `limit` documents of it. Returns its number of tokens. Raises OSError."""
    target = records_file(folder, number)
    part = temporary(target)
    lengths: list[int] = []
    with part.open("wb", buffering=1 << 20) as stream:
        for ids in encoder.encode(texts) if limit != 0 else ():
            stream.write(ids.tobytes())
            lengths.append(len(ids))
            if len(lengths) == limit:
                break
        flush(stream)
    part.replace(target)
    done = lengths_file(folder, number)
    part = temporary(done)
    with part.open("wb") as stream:
        stream.write(np.array(lengths, dtype=np.int32).tobytes())
        flush(stream)
    part.replace(done)
    return sum(lengths)


def flush(stream: BinaryIO) -> None:
    """Write a file to the disk.

    A rename may reach the disk before the data: a node that then loses power leaves a shorter file.
    """
    stream.flush()
    os.fsync(stream.fileno())


def documents_before(folder: Path, number: int, limit: int) -> int:
    """Return the number of documents of the shards before this one, as far as they are complete.

    Shards after `limit` documents are not counted.
    """
    count = 0
    for before in range(number):
        try:
            count += lengths_file(folder, before).stat().st_size // 4
        except FileNotFoundError:
            continue
        if count >= limit:
            break
    return count


def remove_broken(folder: Path, count: int, encoder: RecordEncoder) -> list[int]:
    """Remove the marks of shards whose two files do not belong together. Returns their numbers."""
    broken = []
    for number in range(count):
        lengths = lengths_file(folder, number)
        expected = int(np.fromfile(lengths, dtype=np.int32).sum(dtype=np.int64)) * encoder.dtype.itemsize
        tokens = records_file(folder, number)
        if not tokens.is_file() or tokens.stat().st_size != expected:
            lengths.unlink(missing_ok=True)
            broken.append(number)
    return broken


def join(folder: Path, count: int, prefix: Path, encoder: TokenEncoder, limit: int | None) -> tuple[int, int]:
    """Write PREFIX.bin and PREFIX.idx, as IndexedDatasetBuilder would. Returns documents and tokens.

    Memory does not grow with the number of documents: one shard's lengths are held at a time. Raises OSError.
    """
    width = encoder.dtype.itemsize
    taken = documents_taken(folder, count, limit)
    tokens = 0
    with Path(f"{prefix}.bin").open("wb") as stream:
        for number, documents in enumerate(taken):
            here = int(read_lengths(folder, number, documents).sum(dtype=np.int64))
            _copy(records_file(folder, number), stream, here * width)
            tokens += here
        flush(stream)
    documents = sum(taken)
    with Path(f"{prefix}.idx").open("wb") as stream:
        code = 8 if encoder.dtype == np.uint16 else 4
        stream.write(MAGIC + (1).to_bytes(8, "little") + bytes([code]))
        stream.write(documents.to_bytes(8, "little") + (documents + 1).to_bytes(8, "little"))
        for number, some in enumerate(taken):
            stream.write(read_lengths(folder, number, some).tobytes())
        before = 0
        for number, some in enumerate(taken):
            ends = np.cumsum(read_lengths(folder, number, some), dtype=np.int64) * width + before
            starts = np.concatenate([np.array([before], dtype=np.int64), ends[:-1]]) if some else ends
            stream.write(starts.tobytes())
            before = int(ends[-1]) if some else before
        for start, end in pairwise([*range(0, documents + 1, 1 << 20), documents + 1]):
            stream.write(np.arange(start, end, dtype=np.int64).tobytes())
        flush(stream)
    return documents, tokens


def documents_taken(folder: Path, count: int, limit: int | None) -> Sequence[int]:
    """Return how many documents of each shard are taken, of all `limit`. Raises OSError."""
    taken = []
    left = limit
    for number in range(count):
        here = lengths_file(folder, number).stat().st_size // 4
        if left is not None:
            here = min(here, left)
            left -= here
        taken.append(here)
    return taken


def read_lengths(folder: Path, number: int, documents: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the lengths, in elements, of the first `documents` records of a shard: int32 [documents].

    Raises OSError.
    """
    return np.fromfile(lengths_file(folder, number), dtype=np.int32, count=documents)


def count_tokens(index: Path, first: int, last: int) -> int:
    """Return the number of tokens of the documents from `first` up to `last` of an index file."""
    total = 0
    for start, end in pairwise([*range(first, last, 1 << 20), last]):
        some = np.fromfile(index, dtype=np.int32, count=end - start, offset=HEADER + 4 * start)
        total += int(some.sum(dtype=np.int64))
    return total


def _copy(source: Path, target: BinaryIO, length: int) -> None:
    with source.open("rb") as stream:
        if length == source.stat().st_size:
            shutil.copyfileobj(stream, target, 8 << 20)
            return
        while length > 0 and (data := stream.read(min(length, 8 << 20))):
            target.write(data)
            length -= len(data)

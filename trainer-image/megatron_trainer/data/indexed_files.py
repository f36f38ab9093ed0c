"""The two files of a dataset of Megatron: whether they are whole and belong together, and their ids.

PREFIX.idx has a header (magic, version, code of the type, numbers of sequences and of documents' bounds),
then the length of each sequence, where it begins in PREFIX.bin, and the bounds of the documents, as
`megatron.core.datasets.indexed_dataset` writes them.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.volume_paths import left_volume

MAGIC: Final = b"MMIDIDX\x00\x00"
HEADER: Final = len(MAGIC) + 8 + 1 + 8 + 8
"""Bytes: magic, version, code of the type, number of sequences, number of documents' bounds."""
_TYPES: Final = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Code -> type of ids (DType of Megatron)."""
_SEQUENCES: Final = 1 << 20
_BLOCK: Final = 8 << 20
_READERS: Final = 4


class Entry(Protocol):
    """An entry of `data.sources` or `data.blend`, which names its settings in errors."""

    @property
    def path(self) -> str:
        """Where its documents are from."""

    @property
    def output(self) -> Path:
        """The prefix of the dataset's two files."""

    def refuse(self, setting: str, problem: str) -> PreparationError:
        """Return the error of one of the entry's settings."""


@dataclass(frozen=True)
class IndexedFiles:
    """A dataset whose two files are whole: its ids are of `dtype`, and it has `sequences` of them."""

    entry: Entry
    dtype: np.dtype[Any]
    sequences: int
    bytes: int
    """Of the file of ids."""

    @property
    def ids_file(self) -> Path:
        """PREFIX.bin."""
        return Path(f"{self.entry.output}.bin")


def read_header(entry: Entry) -> IndexedFiles:
    """Check that the files of a dataset are there, whole, and of one another. Raises PreparationError."""
    prefix = entry.output
    index, ids = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, ids):
        if problem := left_volume(path):
            raise entry.refuse("path", problem)
        if not path.is_file():
            raise entry.refuse("path", f"{path} does not exist; {_others(prefix)}")
        if not os.access(path, os.R_OK):
            problem = f"{path} is not readable for user {os.getuid()} of the pods"
            raise entry.refuse("path", f"{problem}; change its mode or owner")
    with index.open("rb") as stream:
        header = stream.read(HEADER)
    if len(header) < HEADER or not header.startswith(MAGIC) or header[9:17] != (1).to_bytes(8, "little"):
        problem = f"{index} does not begin as an index of Megatron"
        raise entry.refuse("path", f"{problem}; copy it again, or list the raw documents in data.sources")
    code = header[17]
    if code not in _TYPES:
        raise entry.refuse("path", f"{index} is of type {code}, which is none of token ids; prepare it again")
    dtype = np.dtype(_TYPES[code])
    sequences, bounds = (int.from_bytes(header[at : at + 8], "little") for at in (18, 26))
    expected, size = HEADER + 12 * sequences + 8 * bounds, index.stat().st_size
    # Datasets of several kinds of samples have one more byte for each sequence.
    if size not in (expected, expected + sequences):
        problem = (
            f"{index} has {size:,} bytes, and by its header it has {expected:,}: it is cut off or damaged"
        )
        raise entry.refuse("path", f"{problem}; copy it again")
    if not sequences:
        raise entry.refuse("path", f"{index} has no document; prepare it again")
    described, bytes_ = _described(entry, index, sequences, dtype), ids.stat().st_size
    if bytes_ != described:
        cut = "is cut off" if bytes_ < described else "is of another dataset"
        problem = f"{ids} has {bytes_:,} bytes, and {index.name} describes {described:,}: it {cut}"
        raise entry.refuse("path", f"{problem}; copy both files again")
    return IndexedFiles(entry, dtype, sequences, bytes_)


def _others(prefix: Path) -> str:
    """How to name a dataset, with those that are in the folder instead."""
    fix = "name a dataset by the path of its .bin and .idx file without these ends"
    folder = prefix.parent
    if not folder.is_dir():
        return f"there is no folder {folder}; copy the dataset there, or correct the path"
    found = sorted({path.name[:-4] for path in folder.iterdir() if path.name.endswith((".bin", ".idx"))})
    here = f"{', '.join(found[:4])}{' and others' if len(found) > 4 else ''}" if found else "no dataset"
    return f"{folder} has {here}; {fix}"


def _described(entry: Entry, index: Path, sequences: int, dtype: np.dtype[Any]) -> int:
    """The bytes of all sequences, which follow each other. Raises PreparationError where they do not."""
    end = 0
    for first in range(0, sequences, _SEQUENCES):
        count = min(_SEQUENCES, sequences - first)
        lengths = np.fromfile(index, dtype=np.int32, count=count, offset=HEADER + 4 * first)
        starts = np.fromfile(index, dtype=np.int64, count=count, offset=HEADER + 4 * sequences + 8 * first)
        ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize + end
        if bool((lengths < 0).any()) or starts[0] != end or bool((starts[1:] != ends[:-1]).any()):
            problem = f"{index} is damaged: its sequences do not follow each other"
            raise entry.refuse("path", f"{problem}; copy it again, or prepare it again")
        end = int(ends[-1])
    return end


def extremes(files: IndexedFiles, step: Callable[[int], None]) -> tuple[int, int]:
    """Return the smallest and the largest id. `step` gets the bytes of each block that has been read.

    Raises OSError.
    """
    smallest, largest = 0, 0
    starts = range(0, files.bytes, _BLOCK)

    def of_block(start: int) -> tuple[int, int, int]:
        count = min(_BLOCK, files.bytes - start) // files.dtype.itemsize
        ids = np.fromfile(files.ids_file, dtype=files.dtype, count=count, offset=start)
        return int(ids.min(initial=0)), int(ids.max(initial=0)), ids.nbytes

    # Several reads at once, as the delay of a network volume would else decide; numpy releases the lock.
    with ThreadPoolExecutor(_READERS) as pool:
        for group in range(0, len(starts), _READERS):
            for low, high, read in pool.map(of_block, starts[group : group + _READERS]):
                smallest, largest = min(smallest, low), max(largest, high)
                step(read)
    return smallest, largest

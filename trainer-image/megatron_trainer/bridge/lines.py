"""Random access to the lines of a file."""

import mmap
from pathlib import Path

import numpy as np


class Lines:
    """The lines of a file that is not empty, without their ends; the file stays on the volume."""

    def __init__(self, path: Path) -> None:
        """Find where the lines end: 8 bytes of memory each."""
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        ends = []
        at = self._bytes.find(b"\n")
        while at >= 0:
            ends.append(at)
            at = self._bytes.find(b"\n", at + 1)
        self._path, self._ends = path, np.array(ends, dtype=np.int64)

    def __reduce__(self) -> tuple[type["Lines"], tuple[Path]]:
        # Processes of a loader that are spawned open the file themselves.
        return Lines, (self._path,)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        start = int(self._ends[index - 1]) + 1 if index else 0
        return self._bytes[start : int(self._ends[index])]

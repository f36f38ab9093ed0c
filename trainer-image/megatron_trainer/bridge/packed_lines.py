"""Has Megatron-Bridge keep which lines of a file are in each packed sequence, and pack long samples too.

Bridge 0.6.2 leaves out a sample that is longer than a sequence. Its end is cut off instead, as it is where
samples are padded.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

COLUMN: Final = "lines"
"""Column of a packed file: of each sequence the numbers of its lines in the file of samples, from 0."""
_LINE: Final = "line"


def install() -> None:
    """Wrap the functions of Bridge that pack; call it once in a process."""
    from megatron.bridge.data.packing import offline, parquet

    offline.create_hist = _numbered(offline.create_hist)
    offline.fill_packing_strategy = _with_lines(offline.fill_packing_strategy)
    parquet.write_packed_parquet = write


def read(path: Path) -> list[list[int]]:
    """Return the lines of each sequence of a packed file.

    Raises OSError, or ValueError for a damaged file.
    """
    import pyarrow.parquet as pq

    found: list[list[int]] = pq.read_table(path, columns=[COLUMN]).column(COLUMN).to_pylist()
    return found


def write(rows: Sequence[dict[str, Any]], output_path: str | Path, row_group_size: int = 500) -> None:
    """Write packed sequences as Bridge does, with their lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "input_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "seq_start_id": pa.list_(pa.int32()),
        COLUMN: pa.list_(pa.int64()),
    }
    columns = {
        name: pa.array([np.asarray(row[name]).astype(np.int64) for row in rows], type=kind)
        for name, kind in types.items()
    }
    pq.write_table(pa.table(columns), str(output_path), row_group_size=row_group_size)


def _numbered(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Give samples the numbers of their lines, and at most `limit` + 1 tokens: the last is a label."""

    def group(samples: Iterable[dict[str, Any]], limit: int) -> Any:
        for line, sample in enumerate(samples):
            sample[_LINE] = line
            for name in ("input_ids", "loss_mask"):
                if name in sample:
                    sample[name] = sample[name][: limit + 1]
        return inner(samples, limit)

    return group


def _with_lines(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Give packed sequences the lines of their samples, which are found again by their tokens."""

    def fill(assignments: Any, samples: dict[int, list[dict[str, Any]]], *args: Any) -> Any:
        lines: defaultdict[bytes, deque[int]] = defaultdict(deque)
        for of_length in samples.values():
            for sample in of_length:
                lines[_digest(sample["input_ids"])].append(sample[_LINE])
        rows = inner(assignments, samples, *args)
        for row in rows:
            ids = row["input_ids"]
            bounds = pairwise([*row["seq_start_id"], len(ids)])
            row[COLUMN] = [lines[_digest(ids[start:end])].popleft() for start, end in bounds]
        return rows

    return fill


def _digest(ids: Any) -> bytes:
    return hashlib.blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16).digest()

"""Where the lines of a file end, which a Job writes, so that ranks need not wait for it.

Megatron-Bridge 0.6.2 has rank 0 look for the ends of lines in the whole file at the first start, while all
others wait (`build_index_files`). The Job that prepares a file writes them beside it, and the one that checks
a file of the user's writes them to the folder where the run keeps its index.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

SUFFIX: Final = ".lines.npy"
_NEWLINE: Final = ord("\n")
_BLOCK: Final = 8 << 20
_COMPARED: Final = 4096
"""Ends of a file that are compared with it, each the read of a page."""

type Ends = np.ndarray[Any, np.dtype[np.int64]]


def find_ends(path: Path) -> Ends:
    """Return the places of the ends of lines in a file. Memory: 16 bytes for each, and a block.

    As by Bridge, a last line without an end has it one byte behind the end of the file.
    """
    found, at = [np.empty(0, dtype=np.int64)], 0
    is_whole = True
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == _NEWLINE) + at)
            at += len(block)
            is_whole = block[-1] == _NEWLINE
    return np.concatenate([*found, np.array([] if is_whole else [at + 1], dtype=np.int64)])


def file_of_ends(path: Path, folder: Path | None = None) -> Path:
    """Return the file with the ends of lines of another: beside it, or in `folder`."""
    return (folder or path.parent) / f"{path.name}{SUFFIX}"


def read_ends(path: Path, written: Path | None = None) -> Ends | None:
    """Return what a Job has written of a file; None if there is nothing, or it is of another file.

    `written`: where it is, by default beside the file.
    """
    try:
        ends: Ends = np.load(written or file_of_ends(path), allow_pickle=False)
        text = np.memmap(path, dtype=np.uint8, mode="r")
    except (EOFError, OSError, ValueError):
        return None
    fits = ends.ndim == 1 and ends.dtype == np.int64 and len(ends) > 0
    return ends if fits and _are_ends(text, ends) else None


def _are_ends(text: np.ndarray[Any, np.dtype[np.uint8]], ends: Ends) -> bool:
    """Whether lines end at some of these places, in order: a file edited in place may have its old size."""
    some = ends[np.linspace(0, len(ends) - 1, min(len(ends), _COMPARED), dtype=np.int64)]
    if some[0] < 0 or np.any(np.diff(some) <= 0):
        return False
    if text[-1] != _NEWLINE:
        last, some = some[-1] - 1, some[:-1]
    else:
        last = some[-1] + 1
    return bool(last == len(text) and np.all(some < len(text)) and np.all(text[some] == _NEWLINE))


def _without_empty_lines(ends: Ends) -> Ends:
    """Leave out those at the end of a file, as Bridge does."""
    last = len(ends)
    while last > 1 and ends[last - 1] - ends[last - 2] < 2:
        last -= 1
    return ends[:last]


def install() -> None:
    """Have Bridge's datasets take what a Job has written; call it once in a process."""
    from megatron.bridge.data.datasets import utils

    inner = utils.build_index_files

    def build_index_files(
        paths: Sequence[str],
        newline: int,
        workers: int | None = None,
        build_index_fn: Any = None,
        **more: Any,
    ) -> None:
        folder = more.get("index_mapping_dir")
        build = _prepared(build_index_fn or utils.build_index_from_memdata, folder and Path(folder))
        inner(paths, newline, workers=workers, build_index_fn=build, **more)

    utils.build_index_files = build_index_files


def _prepared(build: Callable[[str, int], Any], folder: Path | None) -> Callable[[str, int], Any]:
    """What takes the ends that are in `folder`, or beside the file, and builds others."""

    def ends_of(path: str, newline: int) -> Any:
        for place in (folder, None) if newline == _NEWLINE else ():
            written = file_of_ends(Path(path), place)
            if (ends := read_ends(Path(path), written)) is not None:
                return _without_empty_lines(ends)
        started = time.monotonic()
        found = build(path, newline)
        if os.environ.get("RANK", "0") != "0":  # the first of another node, which has folders of its own
            return found
        print(
            f"rank 0 has looked for the ends of {len(found):,} lines of {path} for"
            f" {time.monotonic() - started:.1f} s, while the others waited: no Job had written them",
            flush=True,
        )
        return found

    return ends_of

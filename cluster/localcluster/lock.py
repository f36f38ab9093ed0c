"""One command at a time: two that start or build the same thing would interfere with each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from localcluster.console import Console


@contextmanager
def exclusive(path: Path, what: str, console: Console) -> Iterator[None]:
    """Hold the lock file `path` during the block; print a line before waiting for another command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        console.line(f"waiting for another command that works on {what}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

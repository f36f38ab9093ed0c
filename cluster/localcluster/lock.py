"""One command at a time: two that start or build the same thing would undo each other's work."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.console import Report


@contextmanager
def exclusive(path: Path, what: str, report: Report) -> Iterator[None]:
    """Hold `path` for the block; say so when another command holds it, and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.line(f"another command is at work on {what}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Tracebacks that go from one rank to another.

torch sends the traceback of a save or load that failed to the rank that coordinates. From Python 3.13 on its
frames may hold code objects, which cannot be pickled: that error would take the place of the true one.
"""

import copyreg
from traceback import FrameSummary
from typing import Any


def make_picklable() -> None:
    """From now on frames are pickled as text, without their code."""
    copyreg.pickle(FrameSummary, as_text)


def as_text(frame: FrameSummary) -> tuple[Any, ...]:
    """How pickle is to make it anew: a function and its arguments."""
    return _from_text, (frame.filename, frame.lineno, frame.name, frame.line)


def _from_text(filename: str, lineno: int | None, name: str, line: str | None) -> FrameSummary:
    return FrameSummary(filename, lineno, name, lookup_line=False, line=line)

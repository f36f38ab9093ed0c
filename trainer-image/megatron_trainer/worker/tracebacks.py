"""Makes tracebacks picklable, so that they can be sent between ranks.

torch sends the traceback of a failed save or load to the coordinating rank. From Python 3.13 on its frames
may contain code objects, which cannot be pickled: that error would replace the real one.
"""

import copyreg
from traceback import FrameSummary
from typing import Any


def make_picklable() -> None:
    """Pickle frames as text, without their code, from now on."""
    copyreg.pickle(FrameSummary, as_text)


def as_text(frame: FrameSummary) -> tuple[Any, ...]:
    """Return what pickle calls to re-create the frame: a function and its arguments."""
    return _from_text, (frame.filename, frame.lineno, frame.name, frame.line)


def _from_text(filename: str, lineno: int | None, name: str, line: str | None) -> FrameSummary:
    return FrameSummary(filename, lineno, name, lookup_line=False, line=line)

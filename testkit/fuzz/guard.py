"""Limits one case to a second of processor time."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

LIMIT: Final = 1.0
"""Seconds of processor time of one answer."""


class TooSlow(BaseException):
    """An answer took longer than LIMIT. Not an Exception, so that no code under test takes it for its own."""


@contextmanager
def limited(seconds: float = LIMIT) -> Iterator[None]:
    """Raise TooSlow in the main thread once the block has used `seconds` of processor time."""

    def stop(_signal: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
        raise TooSlow(f"more than {seconds:g} s of processor time, stopped at {where}")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

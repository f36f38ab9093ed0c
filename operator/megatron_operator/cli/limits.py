"""The operator's limits of planning, for the CLI's own process."""

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from megatron_operator.planner.limits import PlanningLimits, memory_limit_error, time_limit_error


class _TimeLimitError(BaseException):
    """Not an Exception: nothing that is planned may handle it."""


@contextlib.contextmanager
def planning_limits(limits: PlanningLimits | None = None) -> Iterator[None]:
    """Raise PlanningLimitError where the block takes more processor time or memory than a recipe may."""
    limits = limits or PlanningLimits()
    with _memory(limits.memory_bytes), _time(limits.cpu_seconds):
        try:
            yield
        except _TimeLimitError:
            raise time_limit_error(limits) from None
        except MemoryError:
            raise memory_limit_error(limits) from None


@contextlib.contextmanager
def _time(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread receives signals.
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeLimitError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _memory(size: int) -> Iterator[None]:
    """Allow `size` bytes of private memory beyond what the process has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _private_memory() + size
    if soft != resource.RLIM_INFINITY and soft <= limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_memory() -> int:
    """Bytes of data and stack; 0 on systems without procfs."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0

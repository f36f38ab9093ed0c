"""Waits for a state. The deadlines of all waits are set here.

A deadline is no measurement: a wait returns as soon as the state is reached, so only a failure takes that
long. On a busy machine every deadline is stretched by the load.
"""

import os
import time
from collections.abc import Callable, Sized

DEADLINE = 180.0
"""Seconds for anything that needs pods to start."""
LONG_DEADLINE = 360.0
"""Seconds for what includes a lost node: 20 s until it is found silent, and the eviction of its pods."""
POLL_INTERVAL = 0.1
POLLS_PER_WAIT = 20
"""A long wait is polled less often, so that it takes little processor time from what it waits for."""
SLOWEST_POLL = 0.5
MAX_LOAD_FACTOR = 5.0


def load_factor() -> float:
    """Runnable processes per core over the last minute: at least 1, at most MAX_LOAD_FACTOR."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MAX_LOAD_FACTOR)


def wait_until[T](
    what: str | Callable[[], str],
    probe: Callable[[], T | None],
    seconds: float = DEADLINE,
    interval: float | None = None,
) -> T:
    """The first result of `probe` that is neither None nor False, nor an empty collection.

    Args:
        what: Completes "timed out waiting for"; a function is called only when the wait runs out.
        probe: Called every POLL_INTERVAL seconds, after a while every SLOWEST_POLL.
        seconds: Deadline on an idle machine; multiplied by load_factor().
        interval: Called every so many seconds instead, for a state that soon passes.

    Raises:
        TimeoutError: No such result before the deadline.
    """
    began = time.monotonic()
    while True:
        found = probe()
        if found is not None and found is not False and not (isinstance(found, Sized) and not len(found)):
            return found
        waited = time.monotonic() - began
        if waited > seconds * load_factor():
            text = what if isinstance(what, str) else what()
            raise TimeoutError(f"timed out after {waited:.0f} s waiting for {text}")
        usual = min(max(waited / POLLS_PER_WAIT, POLL_INTERVAL), SLOWEST_POLL)
        time.sleep(usual if interval is None else interval)

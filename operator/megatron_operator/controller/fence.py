"""Holds back the writes of an operator that is not, or no longer, the leader."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from megatron_operator.api.errors import OperatorError
from megatron_operator.controller.metrics import LEADER


class NotLeaderError(OperatorError):
    """The write was not carried out: another operator may be the leader."""


def monotonic() -> float:
    """Seconds of a clock that nobody can set, and that counts the time in which the machine was suspended."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class Fence:
    """Whether this process may write, until when, and the writes that are in flight."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = -math.inf
        self._in_flight: set[asyncio.Timeout] = set()

    @property
    def remaining(self) -> float:
        """Seconds for which writes are still allowed; 0 or less: they are not."""
        return self._until - self._clock()

    def open(self, until: float = math.inf) -> None:
        """Allow writes until this time of the clock; those in flight get the new end too."""
        self._until = until
        LEADER.set(int(self.remaining > 0))
        for timeout in self._in_flight:
            if not timeout.expired():
                timeout.reschedule(self._deadline())

    def close(self) -> None:
        """Allow no write from now on, and end those in flight."""
        self.open(-math.inf)

    def require(self) -> None:
        """Raise NotLeaderError unless writes are allowed now."""
        if self.remaining <= 0:
            raise NotLeaderError("not written: the leader's lease is not held, or has expired")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Around one write: TimeoutError ends it when the lease expires before it is renewed.

        Raises NotLeaderError when writes are not allowed.
        """
        self.require()
        async with asyncio.timeout_at(self._deadline()) as timeout:
            self._in_flight.add(timeout)
            try:
                yield
            finally:
                self._in_flight.discard(timeout)

    def _deadline(self) -> float | None:
        """The end by the event loop's clock; None: there is none."""
        if self._until == math.inf:
            return None
        return asyncio.get_running_loop().time() + max(self.remaining, 0.0)

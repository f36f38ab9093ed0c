"""What the progress poller knows of one pod, and the slots for requests to pods."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from megatron_contract.progress import ProgressReport

from megatron_operator.lifecycle.progress_reading import ProgressTarget

HOLD: Final = 0.25
"""Seconds for which a request without an answer keeps its slot; it goes on without one until it times out."""


class Standing(Enum):
    """How a pod took the last request; each standing has slots of its own."""

    NEW = "it has not been asked"
    PROMPT = "it answered or refused"
    SLOW = "it did so when the request had lost its slot"
    SILENT = "it let the request time out"


@dataclass(slots=True)
class PolledPod:
    """A pod that is polled."""

    target: ProgressTarget
    standing: Standing = Standing.NEW
    report: ProgressReport | None = None
    """Its last answer."""
    answered: float = 0.0
    """When, by the monotonic clock."""
    silent_since: float | None = None
    """When the first request was sent that has no answer, and none after it has; by the monotonic clock."""
    refused: bool = False
    """Whether its last answer was refused, which is logged once."""
    rest: int = 0
    """Rounds of rest after the last request that timed out."""
    resting: int = 0
    """Rounds of that rest that are left."""
    request: asyncio.Task[None] | None = None
    """The request in flight."""

    @property
    def in_flight(self) -> bool:
        """Whether a request is under way."""
        return self.request is not None and not self.request.done()

    def due(self) -> bool:
        """Whether to ask the pod in this round; to be called once for each."""
        if self.resting > 0:
            self.resting -= 1
            return False
        return not self.in_flight

    def responded(self, seconds: float) -> None:
        """Record that the pod answered or refused the request after so many seconds."""
        self.standing = Standing.PROMPT if seconds < HOLD else Standing.SLOW
        self.rest = 0

    def timed_out(self, longest_rest: int) -> None:
        """Record that the pod let the request time out: it is asked less often, at most `longest_rest` rounds
        apart."""
        self.standing = Standing.SILENT
        self.rest = self.resting = min(2 * self.rest + 1, longest_rest)


class Slots:
    """Bounds requests in flight, so that pods without an answer delay other requests by little."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[float]:
        """Hold a slot for `HOLD` seconds at most; yields when it was taken, by the monotonic clock."""
        await self._free.acquire()
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(HOLD, release)
        try:
            yield time.monotonic()
        finally:
            timer.cancel()
            release()

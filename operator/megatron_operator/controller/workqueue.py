"""A deduplicating work queue that retries with back-off."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.metrics import QUEUE_LENGTH, RECONCILE_SECONDS, RECONCILES
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

FIRST_RETRY: Final = 0.5
"""Seconds before the first retry of a failed reconcile; each further delay is twice as long, and all have a
jitter of 20 %."""
LAST_RETRY: Final = 30.0
"""Seconds of the longest delay of a retry."""
COALESCE: Final = 0.1
"""Seconds for which events of one recipe are collected before it is reconciled."""

Reconcile = Callable[[RecipeKey], Awaitable[float | None]]
"""Returns the seconds until the next reconcile, or None to wait for an event."""


class WorkQueue:
    """Runs `reconcile` for each key that was added, never twice at the same time for one key.

    Level-triggered: a key means that something may have changed, not what.
    """

    def __init__(self, reconcile: Reconcile, workers: int) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._ready: asyncio.Queue[RecipeKey] = asyncio.Queue()
        self._waiting: set[RecipeKey] = set()
        self._working: set[RecipeKey] = set()
        self._again: set[RecipeKey] = set()
        self._timers: dict[RecipeKey, tuple[float, asyncio.Handle]] = {}
        self._failures: dict[RecipeKey, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._idle = asyncio.Event()
        """Set while no reconcile runs."""
        self._idle.set()

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [asyncio.create_task(self._work(), name=f"worker-{n}") for n in range(self._workers)]

    async def stop(self, grace: float = 0.0) -> None:
        """Start no other reconcile, and cancel those that still run after `grace` seconds."""
        self._stopping = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def alive(self) -> bool:
        """Whether all workers run."""
        return all(not task.done() for task in self._tasks)

    def add(self, key: RecipeKey, delay: float = COALESCE) -> None:
        """Reconcile this recipe after `delay` seconds, or earlier if that is already scheduled."""
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if key in self._timers:
            scheduled, timer = self._timers[key]
            if scheduled <= due:
                return
            timer.cancel()
        self._timers[key] = (due, loop.call_later(delay, self._due, key))

    def _due(self, key: RecipeKey) -> None:
        self._timers.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)
            QUEUE_LENGTH.set(self._ready.qsize())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            QUEUE_LENGTH.set(self._ready.qsize())
            self._waiting.discard(key)
            if self._stopping:
                continue
            self._working.add(key)
            self._idle.clear()
            try:
                with RECONCILE_SECONDS.time():
                    delay = await self._reconcile(key)
            except Exception as error:
                RECONCILES.labels("error").inc()
                self._retry(key, error)
            else:
                RECONCILES.labels("done").inc()
                self._failures.pop(key, None)
                if delay is not None:
                    self.add(key, delay)
            finally:
                self._working.discard(key)
                if not self._working:
                    self._idle.set()
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    def _retry(self, key: RecipeKey, error: Exception) -> None:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_RETRY * 2 ** min(count, 10), LAST_RETRY) * random.uniform(0.8, 1.2)
        if (within := getattr(error, "within", None)) is not None:
            delay = min(delay, within)
        # Conflicts and lost connections are normal; only an unexpected error gets a traceback.
        expected = isinstance(error, EXPECTED_ERRORS)
        log.warning("%s: %s; retry in %.1f s", key, described(error), delay, exc_info=not expected)
        self.add(key, delay)

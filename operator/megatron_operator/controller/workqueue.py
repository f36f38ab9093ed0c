"""Which recipes are to be looked at: each once, never two workers at the same one, failures again later."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from megatron_operator.controller.process_metrics import LOOKS, SECONDS

log = logging.getLogger(__name__)

FIRST_RETRY: Final = 0.5
LAST_RETRY: Final = 30.0
COALESCE: Final = 0.1
"""Seconds that events about one recipe are gathered before it is looked at."""


class Key(NamedTuple):
    """A recipe's place."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


Reconcile = Callable[[Key], Awaitable[float | None]]


class WorkQueue:
    """Level-triggered: a key says that something may have changed, not what."""

    def __init__(self, reconcile: Reconcile, workers: int) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, tuple[float, asyncio.Handle]] = {}
        self._failures: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work(), name=f"worker-{n}") for n in range(self._workers)]

    async def stop(self) -> None:
        for _, timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def alive(self) -> bool:
        return all(not task.done() for task in self._tasks)

    def add(self, key: Key, delay: float = COALESCE) -> None:
        """Look at this recipe after `delay` seconds; an earlier appointment stands."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if key in self._timers:
            earlier, timer = self._timers[key]
            if earlier <= due:
                return
            timer.cancel()
        self._timers[key] = (due, loop.call_later(delay, self._due, key))

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                with SECONDS.time():
                    delay = await self._reconcile(key)
            except Exception as error:
                LOOKS.labels("error").inc()
                self._retry(key, error)
            else:
                LOOKS.labels("done").inc()
                self._failures.pop(key, None)
                if delay is not None:
                    self.add(key, delay)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    def _retry(self, key: Key, error: Exception) -> None:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_RETRY * 2**count, LAST_RETRY) * random.uniform(0.8, 1.2)
        # A conflict or a lost connection is everyday; the trace is for what should not happen.
        expected = isinstance(error, (OSError, TimeoutError)) or hasattr(error, "status")
        log.warning("%s: %s; again in %.1f s", key, error or repr(error), delay, exc_info=not expected)
        self.add(key, delay)

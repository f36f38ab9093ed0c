"""A deduplicating work queue that serves what is urgent first and retries with back-off."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.list_limit import ListsLimitedError
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

URGENT: Final = 0.0
"""Patience of a key whose recipe was edited, or whose run was disturbed."""
NORMAL: Final = 30.0
"""Patience of a key of which anything else has changed. It is long, so that of many new recipes all have
their jobs before the pods of the first ones are reported."""
ROUTINE: Final = 60.0
"""Patience of a key of which nothing is known to have changed. One that is due again after a shorter time, as
its reconcile has asked for, is as patient as that time is long."""

Reconcile = Callable[[RecipeKey], Awaitable[float | None]]
"""Returns the seconds until the next reconcile, or None to wait for an event."""


@dataclass(frozen=True, slots=True)
class _Timer:
    """When a key becomes due, by the clock of the event loop, and with which patience."""

    due: float
    patience: float
    handle: asyncio.Handle


class WorkQueue:
    """Runs `reconcile` for each key that was added, never twice at the same time for one key.

    Level-triggered: a key means that something may have changed, not what. Keys are served in the order of
    the time at which they are due plus their patience, in seconds: the urgent ones overtake the others, and
    none waits forever.
    """

    def __init__(self, reconcile: Reconcile, workers: int) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._ready: asyncio.PriorityQueue[tuple[float, int, RecipeKey, float]] = asyncio.PriorityQueue()
        self._entries = itertools.count()
        self._waiting: dict[RecipeKey, float] = {}
        """Keys that no worker has taken yet, and the time by which they are ordered."""
        self._working: set[RecipeKey] = set()
        self._again: dict[RecipeKey, float] = {}
        """Keys that became due while they were reconciled, and their patience."""
        self._timers: dict[RecipeKey, _Timer] = {}
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
        for timer in self._timers.values():
            timer.handle.cancel()
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

    def add(self, key: RecipeKey, delay: float = COALESCE, patience: float = NORMAL) -> None:
        """Reconcile this recipe after `delay` seconds, or earlier if that is already scheduled.

        Where it is scheduled or waits, the shorter patience holds.
        """
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if (timer := self._timers.get(key)) is not None:
            if timer.due <= due and timer.patience <= patience:
                return
            timer.handle.cancel()
            due, patience = min(due, timer.due), min(patience, timer.patience)
        self._timers[key] = _Timer(due, patience, loop.call_at(due, self._due, key, patience))

    def _due(self, key: RecipeKey, patience: float) -> None:
        self._timers.pop(key, None)
        if key in self._working:
            self._again[key] = min(patience, self._again.get(key, patience))
            return
        order = asyncio.get_running_loop().time() + patience
        if order < self._waiting.get(key, math.inf):
            self._waiting[key] = order
            self._ready.put_nowait((order, next(self._entries), key, patience))
            QUEUE_LENGTH.set(len(self._waiting))

    async def _work(self) -> None:
        while True:
            order, _, key, patience = await self._ready.get()
            if self._waiting.get(key) != order:
                continue  # it was added again with less patience, and has been served
            del self._waiting[key]
            QUEUE_LENGTH.set(len(self._waiting))
            if self._stopping:
                continue
            self._working.add(key)
            self._idle.clear()
            try:
                with RECONCILE_SECONDS.time():
                    delay = await self._reconcile(key)
            except Exception as error:
                RECONCILES.labels("error").inc()
                self._retry(key, error, patience)
            else:
                RECONCILES.labels("done").inc()
                self._failures.pop(key, None)
                if delay is not None:
                    self.add(key, delay, min(delay, ROUTINE))
            finally:
                self._working.discard(key)
                if not self._working:
                    self._idle.set()
                if (again := self._again.pop(key, None)) is not None:
                    self.add(key, patience=again)

    def _retry(self, key: RecipeKey, error: Exception, patience: float) -> None:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_RETRY * 2 ** min(count, 10), LAST_RETRY) * random.uniform(0.8, 1.2)
        if (within := getattr(error, "within", None)) is not None:
            delay = min(delay, within)
        # Conflicts and lost connections are normal; only an unexpected error gets a traceback.
        expected = isinstance(error, (*EXPECTED_ERRORS, ListsLimitedError))
        log.warning("%s: %s; retry in %.1f s", key, described(error), delay, exc_info=not expected)
        self.add(key, delay, patience)

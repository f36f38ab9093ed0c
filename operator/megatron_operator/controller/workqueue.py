"""A deduplicating work queue that serves what is urgent first and retries with back-off."""

import asyncio
import contextlib
import heapq
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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

URGENT: Final = 0.0
"""Patience of a key whose recipe was edited, or whose run was disturbed."""
NORMAL: Final = 60.0
"""Patience of a key of which anything else has changed. It is long, so that of many new recipes all have
their jobs before the pods of the first ones are read and reported."""
ROUTINE: Final = 90.0
"""Patience of a key of which nothing is known to have changed."""
PATIENCE: Final = 4.0
"""A key that is due again after some seconds, as its reconcile has asked for, is patient for as many times as
long, and no longer than ROUTINE."""

STARTS: Final = 4
"""As many times `workers` recipes may be reconciled at a time where they start. A start lists nothing, and a
busy API server answers in proportion to what it is asked."""

Reconcile = Callable[[RecipeKey], Awaitable[float | None]]
"""Returns the seconds until the next reconcile, or None to wait for an event."""


@dataclass(frozen=True, slots=True)
class _Timer:
    """When a key becomes due, by the clock of the event loop, and with which patience."""

    due: float
    patience: float
    handle: asyncio.Handle


type _Entry = tuple[float, int, RecipeKey]
"""The time by which a key is ordered, a number that no other entry has, and the key."""


@dataclass(slots=True)
class _Lane:
    """Keys that compete for the same places: those that wait as a heap, and how many are reconciled."""

    waiting: list[_Entry] = field(default_factory=list)
    working: int = 0


class _Waiting(NamedTuple):
    """Where a key waits. Other entries of it, in this lane or another, are out of date."""

    entry: _Entry
    patience: float


class WorkQueue:
    """Runs `reconcile` for each key that was added, never twice at the same time for one key.

    Level-triggered: a key means that something may have changed, not what. Keys are served in the order of
    the time at which they are due plus their patience, in seconds: the urgent ones overtake the others, and
    none waits forever. Keys for which `is_start` holds when they are due may be reconciled while fewer than
    `STARTS * workers` are in all, of others `workers` at a time. Of these:

    - those that are not urgent have half of the places while urgent ones wait, however overdue they are;
    - while at least `workers` start, those that are not urgent wait until their patience ends.
    """

    def __init__(
        self, reconcile: Reconcile, workers: int, is_start: Callable[[RecipeKey], bool] = lambda _key: False
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._is_start = is_start
        self._starts, self._urgent, self._patient = _Lane(), _Lane(), _Lane()
        self._entries = itertools.count()
        self._waiting: dict[RecipeKey, _Waiting] = {}
        """Keys that are due and not reconciled yet."""
        self._working: set[RecipeKey] = set()
        self._again: dict[RecipeKey, float] = {}
        """Keys that became due while they were reconciled, and their patience."""
        self._timers: dict[RecipeKey, _Timer] = {}
        self._failures: dict[RecipeKey, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._stopping = False
        self._broken = False
        """Whether a reconcile has ended in a way that no reconcile should."""
        self._idle = asyncio.Event()
        """Set while no reconcile runs."""
        self._idle.set()

    def start(self) -> None:
        """Reconcile what was added, and what will be."""
        self._started = True
        self._dispatch()

    async def stop(self, grace: float = 0.0) -> None:
        """Start no other reconcile, and cancel those that still run after `grace` seconds."""
        self._stopping = True
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def alive(self) -> bool:
        """Whether all reconciles have ended as they should."""
        return not self._broken

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
        if (waiting := self._waiting.get(key)) is not None:
            if waiting.entry[0] <= order and waiting.patience <= patience:
                return
            order, patience = min(order, waiting.entry[0]), min(patience, waiting.patience)
        entry = order, next(self._entries), key
        self._waiting[key] = _Waiting(entry, patience)
        lane = self._starts if self._is_start(key) else self._patient if patience else self._urgent
        heapq.heappush(lane.waiting, entry)
        QUEUE_LENGTH.set(len(self._waiting))
        self._dispatch()

    def _dispatch(self) -> None:
        """Begin as many reconciles as may run now."""
        while self._started and not self._stopping and (lane := self._next_lane()) is not None:
            _, _, key = heapq.heappop(lane.waiting)
            patience = self._waiting.pop(key).patience
            QUEUE_LENGTH.set(len(self._waiting))
            self._working.add(key)
            self._idle.clear()
            lane.working += 1
            task = asyncio.create_task(self._run(key, patience, lane), name=f"reconcile {key}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _next_lane(self) -> _Lane | None:
        """The lane whose first key is served next; None where none waits that may be served now."""
        lanes = (self._starts, self._urgent, self._patient)
        for lane in lanes:
            while (waiting := lane.waiting) and not self._is_current(waiting[0]):
                heapq.heappop(waiting)
        ready = [lane for lane in lanes if lane.waiting and self._has_place(lane)]
        return min(ready, key=lambda lane: lane.waiting[0], default=None)

    def _is_current(self, entry: _Entry) -> bool:
        waiting = self._waiting.get(entry[2])
        return waiting is not None and waiting.entry == entry

    def _has_place(self, lane: _Lane) -> bool:
        """Whether the first key of this lane may be served now."""
        if lane is self._starts:
            return len(self._working) < STARTS * self._workers
        if self._urgent.working + self._patient.working >= self._workers:
            return False
        if lane is self._urgent:
            return True
        if self._urgent.waiting and self._patient.working >= math.ceil(self._workers / 2):
            return False
        # What has to wait for its patience is considered again when a start ends.
        many_start = self._starts.working >= self._workers
        return not many_start or lane.waiting[0][0] <= asyncio.get_running_loop().time()

    async def _run(self, key: RecipeKey, patience: float, lane: _Lane) -> None:
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
                # What follows a start is to be read and reported after other starts, as its pods are.
                self.add(key, delay, NORMAL if lane is self._starts else min(PATIENCE * delay, ROUTINE))
        finally:
            lane.working -= 1
            self._working.discard(key)
            if not self._working:
                self._idle.set()
            if (again := self._again.pop(key, None)) is not None:
                self.add(key, patience=again)
            self._dispatch()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._stopping and (task.cancelled() or task.exception() is not None):
            self._broken = True
            error = None if task.cancelled() else task.exception()
            log.error("%s has ended", task.get_name(), exc_info=error)

    def _retry(self, key: RecipeKey, error: Exception, patience: float) -> None:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_RETRY * 2 ** min(count, 10), LAST_RETRY) * random.uniform(0.8, 1.2)
        if (within := getattr(error, "within", None)) is not None:
            delay = min(delay, within)
        # Conflicts and lost connections are normal; only an unexpected error gets a traceback.
        expected = isinstance(error, EXPECTED_ERRORS)
        log.warning("%s: %s; retry in %.1f s", key, described(error), delay, exc_info=not expected)
        self.add(key, delay, patience)

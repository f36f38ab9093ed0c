"""Detects a hang: every rank of the pod is silent for longer than its current activity may take.

A rank reports every step and the start and end of what takes longer: loading, the first steps, saving,
finishing an asynchronous save, evaluating. Training is synchronous, so one rank that hangs silences all; a
rank in a long activity extends the limit for all of them.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_contract.time_limits import LONG_ACTIVITY, watchdog_limit

_STEPS_REMEMBERED = 20

# Events after which a rank is not in a training step, and those after which it is again.
_LONG_EVENTS = {"busy", "loaded", "finished"}
_STEP_EVENTS = {"free", "saved"}


@dataclass
class _Rank:
    since: float
    long: bool = True
    settled: bool = False
    doing: str = "starting"
    iteration: int | None = None


class Watchdog:
    """Tracks the silence of one pod's ranks.

    `timeout`: auto, off, or seconds that a training step may take. `clock`: returns seconds.
    """

    def __init__(self, timeout: str | float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._ranks: dict[int, _Rank] = {}
        self._generation = 0
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)

    @property
    def limit(self) -> float:
        """Seconds that a training step may be silent."""
        if isinstance(self._timeout, float):
            return self._timeout
        return watchdog_limit(statistics.median(self._steps)) if self._steps else LONG_ACTIVITY

    def start_generation(self, generation: int, ranks: Sequence[int]) -> None:
        """Track these ranks of this pod, which are about to start."""
        now = self._clock()
        with self._lock:
            self._generation = generation
            self._ranks = {rank: _Rank(now) for rank in ranks}

    def stop(self) -> None:
        """Track no rank: they are stopped."""
        with self._lock:
            self._ranks = {}

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply an event of a rank."""
        with self._lock:
            rank = self._ranks.get(event["rank"])
            if rank is None or event["generation"] != self._generation:
                return
            rank.since = self._clock()
            kind = event["event"]
            if kind == "iteration":
                rank.iteration = event["iteration"]
                rank.settled = event["settled"]
                rank.doing, rank.long = "training", not rank.settled
                if rank.settled and event["rank"] == min(self._ranks):
                    self._steps.append(event["stepSeconds"])
            elif kind == "phase":
                rank.doing = event["phase"]
                rank.long = rank.doing != "training" or not rank.settled
            elif kind in _LONG_EVENTS:
                rank.doing, rank.long = event.get("doing", kind), True
            elif kind == "skipped":
                rank.iteration = event["iteration"]
            elif kind in _STEP_EVENTS:
                rank.doing, rank.long = "training", not rank.settled

    def stalled(self) -> bool:
        """Return whether every rank of this pod has been silent for longer than its limit."""
        if self._timeout == "off":
            return False
        now, limit = self._clock(), self.limit
        with self._lock:
            ranks = list(self._ranks.values())
        allowed = {False: limit, True: max(limit, LONG_ACTIVITY)}
        return bool(ranks) and all(now - rank.since > allowed[rank.long] for rank in ranks)

    def silent_seconds(self) -> float:
        """Return the seconds since the last event of any rank here."""
        now = self._clock()
        with self._lock:
            return min((now - rank.since for rank in self._ranks.values()), default=0.0)

    def last_known(self) -> dict[int, tuple[int | None, str]]:
        """Return, by rank, the last iteration done and the current activity."""
        with self._lock:
            return {number: (rank.iteration, rank.doing) for number, rank in self._ranks.items()}

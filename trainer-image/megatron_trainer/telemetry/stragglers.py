"""Finds slow ranks: those whose own work takes longer than that of ranks with the same work.

A rank's own time is that of a step without its waits for others. Ranks of one pipeline stage have the same
work; stages have not, so a rank that is alone in its stage has no peers and is never named.
"""

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_contract.limits import MAX_STRAGGLERS
from megatron_contract.progress import ReportedStraggler

WINDOW = 16
"""Measured steps on which a verdict is based."""
SLOW_FROM = 1.5
"""Own time over that of the peers from which a rank is slow ..."""
SLOW_UNTIL = 1.2
"""... and down to which it stays slow. Three in four of the steps must be above it for a rank to be named."""
_STEADY_SHARE = 0.75
_COST_FROM = 0.1
"""Fraction of a step that the gang must lose to a rank for it to be named; below half of it it is cleared."""
SLOW_SECONDS = 30.0
"""Seconds for which all that must hold: the scheduler of a busy machine may prefer some processes over others
for as long as WINDOW steps of a small model take."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The last measured steps of a rank. `steps`: iteration -> (its own seconds, seconds of the step)."""

    rank: int
    node_rank: int
    stage: int
    """Pipeline stage."""
    steps: Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """When a rank was found slow, in seconds, and the first and last step of that verdict."""

    time: float
    first: int
    last: int


class StragglerDetector:
    """Names slow ranks from the measured steps of all ranks, with hysteresis."""

    def __init__(self) -> None:
        self._named: dict[int, ReportedStraggler] = {}
        self._suspected: dict[int, _Suspicion] = {}
        """Ranks that the last verdict found slow -> the first of the verdicts that did."""

    def reset(self) -> None:
        """Forget who was slow: the ranks have been restarted."""
        self._named.clear()
        self._suspected.clear()

    def update(self, ranks: Iterable[RankSteps], now: float) -> tuple[ReportedStraggler, ...]:
        """Return the slow ranks, slowest first, at most MAX_STRAGGLERS.

        Of more, those already named stay and the lowest ranks are added: how slow each is varies, and a
        choice by that would name others each time. While a stage has too few common steps its verdict stays.
        `now`: seconds of a monotonic clock.
        """
        stages: dict[int, list[RankSteps]] = {}
        for each in ranks:
            stages.setdefault(each.stage, []).append(each)
        found = [each for peers in stages.values() for each in self._slow_in(peers, now)]
        chosen = sorted(found, key=lambda each: (each.rank not in self._named, each.rank))[:MAX_STRAGGLERS]
        self._named = {each.rank: each for each in chosen}
        return tuple(sorted(chosen, key=lambda each: -each.slowdown))

    def _slow_in(self, stage: Sequence[RankSteps], now: float) -> Iterable[ReportedStraggler]:
        if len(stage) < 2:
            return
        window = sorted(set.intersection(*(set(each.steps) for each in stage)))[-WINDOW:]
        if len(window) < WINDOW:
            for each in stage:
                self._suspected.pop(each.rank, None)
            yield from (self._named[each.rank] for each in stage if each.rank in self._named)
            return
        ordered = {step: sorted(each.steps[step][0] for each in stage) for step in window}
        for each in stage:
            others = [_median_of_others(ordered[step], each.steps[step][0]) for step in window]
            own = [each.steps[step][0] for step in window]
            ratios = [mine / max(theirs, 1e-9) for mine, theirs in zip(own, others, strict=True)]
            slowdown = statistics.median(ratios)
            own_seconds, peer_seconds = statistics.median(own), statistics.median(others)
            cost = (own_seconds - peer_seconds) / statistics.median(each.steps[step][1] for step in window)
            steady = sum(ratio > SLOW_UNTIL for ratio in ratios) >= _STEADY_SHARE * WINDOW
            slow = slowdown >= SLOW_FROM and steady and cost >= _COST_FROM
            iteration, lasting = self._suspect(each.rank, slow, window, now)
            known = self._named.get(each.rank)
            new = slow and lasting
            still = known is not None and slowdown > SLOW_UNTIL and cost > _COST_FROM / 2
            if new or still:
                yield ReportedStraggler(
                    rank=each.rank,
                    node_rank=each.node_rank,
                    iteration=iteration if known is None else known.iteration,
                    slowdown=slowdown,
                    own_seconds=own_seconds,
                    peer_seconds=peer_seconds,
                )

    def _suspect(self, rank: int, slow: bool, window: Sequence[int], now: float) -> tuple[int, bool]:
        """The iteration since which `rank` is slow in each verdict, and whether it is for long enough.

        Half of the steps must have come since then: while no step does, the verdict is the same.
        """
        if not slow:
            self._suspected.pop(rank, None)
            return window[0], False
        since = self._suspected.setdefault(rank, _Suspicion(now, window[0], window[-1]))
        lasting = now - since.time >= SLOW_SECONDS and window[WINDOW // 2] > since.last
        return since.first, lasting


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """The low median of sorted values without `own`, one of them."""
    at = (len(ordered) - 2) // 2
    return ordered[at] if at < bisect.bisect_left(ordered, own) else ordered[at + 1]

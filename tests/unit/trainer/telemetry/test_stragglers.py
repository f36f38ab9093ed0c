"""Which ranks are named slow, from the measured steps of all ranks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from megatron_contract.limits import MAX_STRAGGLERS
from megatron_contract.progress import ReportedStraggler
from megatron_trainer.telemetry.stragglers import (
    SLOW_FROM,
    SLOW_SECONDS,
    SLOW_UNTIL,
    WINDOW,
    RankSteps,
    StragglerDetector,
)

STEP = 1.0
"""Seconds of a step; a healthy rank works half of it."""


def gang(
    own: Callable[[int, int], float], ranks: int = 8, stages: int = 1, per_node: int = 4, steps: int = WINDOW
) -> list[RankSteps]:
    """Ranks whose own time in a step is `own(rank, step)` seconds."""
    return [
        RankSteps(
            rank,
            rank // per_node,
            rank * stages // ranks,
            {4 * step: (own(rank, step), STEP) for step in range(steps)},
        )
        for rank in range(ranks)
    ]


CLOCK = count(step=2 * SLOW_SECONDS)


def later(ranks: Sequence[RankSteps], steps: int = WINDOW // 2) -> list[RankSteps]:
    """The same own times, so many measured steps later."""
    return [
        replace(each, steps={at + 4 * steps: times for at, times in each.steps.items()}) for each in ranks
    ]


def verdict(
    ranks: Sequence[RankSteps], detector: StragglerDetector | None = None
) -> tuple[ReportedStraggler, ...]:
    """The verdict on ranks that have been like this for long."""
    detector = detector or StragglerDetector()
    now = next(CLOCK)
    detector.update(ranks, now)
    return detector.update(later(ranks), now + SLOW_SECONDS)


def named(ranks: Sequence[RankSteps], detector: StragglerDetector | None = None) -> list[int]:
    return [each.rank for each in verdict(ranks, detector)]


def test_the_rank_that_works_longest_is_named_with_its_node_and_its_peers_time() -> None:
    [slow] = verdict(gang(lambda rank, _: 0.9 if rank == 5 else 0.5))
    assert (slow.rank, slow.node_rank, slow.iteration) == (5, 1, 0)
    assert (slow.slowdown, slow.own_seconds, slow.peer_seconds) == (pytest.approx(1.8), 0.9, 0.5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_of_a_slow_node_are_named_slowest_first(ranks: int) -> None:
    slow_node = gang(lambda rank, _: 0.5 if rank < ranks // 2 else 0.9 + rank / 100, ranks)
    assert named(slow_node) == list(reversed(range(ranks // 2, ranks)))


def test_a_busy_machine_names_nobody() -> None:
    """Own times vary by a factor of four, for all ranks alike."""
    random = Random(3)
    detector = StragglerDetector()
    for _ in range(500):
        assert named(gang(lambda *_: random.uniform(0.2, 0.8)), detector) == []


SLOW = gang(lambda rank, _: 0.9 if rank == 5 else 0.5)


def test_a_rank_that_is_slow_for_a_moment_is_not_named_however_many_steps_that_was() -> None:
    detector = StragglerDetector()
    assert detector.update(SLOW, 0) == ()
    assert detector.update(later(SLOW, 100), SLOW_SECONDS - 1) == ()
    assert detector.update(later(gang(lambda *_: 0.5), 200), SLOW_SECONDS) == ()
    assert detector.update(later(SLOW, 300), SLOW_SECONDS + 1) == ()
    assert detector.update(later(SLOW, 400), 2 * SLOW_SECONDS) == ()
    [named] = detector.update(later(SLOW, 500), 2 * SLOW_SECONDS + 1)
    assert (named.rank, named.iteration) == (5, 4 * 300)


def test_a_rank_is_not_named_from_the_same_steps_while_none_is_added() -> None:
    detector = StragglerDetector()
    assert detector.update(SLOW, 0) == ()
    assert detector.update(SLOW, 2 * SLOW_SECONDS) == ()
    assert detector.update(later(SLOW, WINDOW // 2 - 1), 2 * SLOW_SECONDS) == ()
    assert len(detector.update(later(SLOW, WINDOW // 2), 2 * SLOW_SECONDS)) == 1


def test_a_suspicion_ends_where_too_few_steps_are_common_to_all() -> None:
    detector = StragglerDetector()
    assert detector.update(SLOW, 0) == ()
    assert detector.update([later(SLOW)[0], *SLOW[1:]], 1) == ()
    assert detector.update(later(SLOW), SLOW_SECONDS) == ()
    assert len(detector.update(later(SLOW, WINDOW), 2 * SLOW_SECONDS)) == 1


def test_a_rank_that_stood_still_in_a_few_steps_is_not_named() -> None:
    assert named(gang(lambda rank, step: 5.0 if rank == 2 and step % 4 == 0 else 0.5)) == []


def test_a_rank_that_costs_the_gang_little_is_not_named() -> None:
    assert named(gang(lambda rank, _: 0.02 if rank == 2 else 0.01)) == []


def test_stages_with_more_work_are_not_compared_with_others() -> None:
    assert named(gang(lambda rank, _: 0.9 if rank >= 4 else 0.3, stages=2)) == []
    assert named(gang(lambda rank, _: 0.9 if rank >= 4 else 0.3, stages=8)) == []


def test_nobody_is_named_before_enough_steps_are_measured() -> None:
    assert named(gang(lambda rank, _: 0.9 if rank == 5 else 0.3, steps=WINDOW - 1)) == []


def test_a_named_rank_stays_named_until_it_is_as_fast_as_the_others() -> None:
    detector = StragglerDetector()
    between = (SLOW_FROM + SLOW_UNTIL) / 2 * 0.5

    def slow_by(seconds: float) -> list[RankSteps]:
        return gang(lambda rank, _: seconds if rank == 1 else 0.5)

    assert named(slow_by(between), detector) == []
    assert named(slow_by(0.9), detector) == [1]
    assert named(slow_by(between), detector) == [1]
    assert named(slow_by(0.55), detector) == []
    assert named(slow_by(between), detector) == []
    assert named(slow_by(0.9), detector) == [1]
    detector.reset()
    assert named(slow_by(between), detector) == []


def test_a_verdict_stays_while_too_few_steps_are_common_to_all() -> None:
    detector = StragglerDetector()
    slow = gang(lambda rank, _: 0.9 if rank == 1 else 0.5)
    before = verdict(slow, detector)
    behind = replace(slow[0], steps={step - 4: times for step, times in slow[0].steps.items()})
    assert verdict([behind, *slow[1:]], detector) == before
    [still] = verdict(later(slow, 1), detector)
    assert (still.rank, still.iteration) == (1, 0), "since the iteration at which it was first named"


def test_of_more_slow_ranks_than_a_report_holds_the_same_are_named_each_time() -> None:
    random = Random(3)
    detector = StragglerDetector()

    def slow_from(first: int) -> list[RankSteps]:
        factor = {rank: random.uniform(0.8, 0.95) if rank >= first else 0.4 for rank in range(64)}
        return gang(lambda rank, _: factor[rank], ranks=64)

    for first in (40, 40, 36):
        assert sorted(named(slow_from(first), detector)) == list(range(40, 40 + MAX_STRAGGLERS))
    assert sorted(named(slow_from(44), detector)) == list(range(44, 44 + MAX_STRAGGLERS))

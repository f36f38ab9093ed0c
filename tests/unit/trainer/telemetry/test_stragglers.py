"""Which ranks are named slow, from the measured steps of all ranks."""

from collections.abc import Callable, Iterable
from random import Random

import pytest
from megatron_trainer.telemetry.stragglers import SLOW_FROM, SLOW_UNTIL, WINDOW, RankSteps, StragglerDetector

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


def named(ranks: Iterable[RankSteps], detector: StragglerDetector | None = None) -> list[int]:
    return [each.rank for each in (detector or StragglerDetector()).update(ranks)]


def test_the_rank_that_works_longest_is_named_with_its_node_and_its_peers_time() -> None:
    [slow] = StragglerDetector().update(gang(lambda rank, _: 0.9 if rank == 5 else 0.5))
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

"""When ranks count as hanging, by a simulated clock."""

from typing import Any

import pytest
from megatron_contract.time_limits import LONG_ACTIVITY, WATCHDOG_MARGIN
from megatron_trainer.health.watchdog import Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def training(clock: Clock, timeout: str | float = "auto", step: float = 2.0) -> Watchdog:
    """A pod with ranks 2 and 3 that have done some steps of `step` seconds."""
    watchdog = Watchdog(timeout, clock)
    watchdog.start_generation(1, [2, 3])
    for iteration in range(1, 5):
        for rank in (2, 3):
            report(watchdog, rank, "iteration", iteration=iteration, settled=iteration > 1, stepSeconds=step)
    return watchdog


def report(watchdog: Watchdog, rank: int, event: str, generation: int = 1, **fields: Any) -> None:
    watchdog.apply({"event": event, "rank": rank, "generation": generation, **fields})


def test_a_step_may_take_three_median_steps_and_the_stall_of_a_file_system(clock: Clock) -> None:
    watchdog = training(clock, step=2.0)
    clock.now += 3 * 2.0 + WATCHDOG_MARGIN
    assert not watchdog.stalled()
    clock.now += 0.1
    assert watchdog.stalled()


def test_the_limit_follows_the_median_and_not_a_single_slow_step(clock: Clock) -> None:
    watchdog = training(clock, step=2.0)
    report(watchdog, 2, "iteration", iteration=5, settled=True, stepSeconds=500.0)
    assert watchdog.limit == 3 * 2.0 + WATCHDOG_MARGIN


def test_the_pod_is_not_stalled_while_one_rank_reports(clock: Clock) -> None:
    watchdog = training(clock)
    clock.now += 100
    report(watchdog, 3, "iteration", iteration=5, settled=True, stepSeconds=2.0)
    assert not watchdog.stalled()


@pytest.mark.parametrize(
    "activity",
    [
        ("phase", {"phase": "saving"}),
        ("phase", {"phase": "evaluating"}),
        ("phase", {"phase": "loading"}),
        ("busy", {"doing": "finishing a save"}),
        ("loaded", {"iteration": 8}),
    ],
)
def test_an_activity_other_than_a_step_has_the_long_limit(
    activity: tuple[str, dict[str, Any]], clock: Clock
) -> None:
    watchdog = training(clock)
    report(watchdog, 2, activity[0], **activity[1])
    clock.now += LONG_ACTIVITY
    assert not watchdog.stalled(), "rank 3 waits for rank 2, which is busy"
    clock.now += 1
    assert watchdog.stalled()


@pytest.mark.parametrize("end", [("saved", {}), ("free", {}), ("phase", {"phase": "training"})])
def test_the_limit_of_a_step_applies_again_after_it(end: tuple[str, dict[str, Any]], clock: Clock) -> None:
    watchdog = training(clock)
    for rank in (2, 3):
        report(watchdog, rank, "phase", phase="saving")
    clock.now += 1000
    for rank in (2, 3):
        report(watchdog, rank, end[0], **end[1])
    clock.now += 3 * 2.0 + WATCHDOG_MARGIN + 1
    assert watchdog.stalled()


def test_a_long_evaluation_is_not_a_hang_while_it_reports_batches(clock: Clock) -> None:
    watchdog = training(clock)
    for rank in (2, 3):
        report(watchdog, rank, "phase", phase="evaluating")
    for _ in range(10):
        clock.now += LONG_ACTIVITY - 1
        report(watchdog, 2, "pulse")
        assert not watchdog.stalled()


def test_start_and_first_step_have_the_long_limit(clock: Clock) -> None:
    watchdog = Watchdog("auto", clock)
    watchdog.start_generation(1, [0])
    report(watchdog, 0, "iteration", iteration=1, settled=False, stepSeconds=60.0)
    clock.now += LONG_ACTIVITY
    assert not watchdog.stalled()


def test_the_timeout_can_be_a_number_of_seconds_or_off(clock: Clock) -> None:
    strict, never = training(clock, 5.0), training(clock, "off")
    clock.now += 5.1
    assert (strict.stalled(), never.stalled()) == (True, False)
    clock.now += 1e9
    assert not never.stalled()


def test_stopped_ranks_and_those_of_an_earlier_generation_do_not_count(clock: Clock) -> None:
    watchdog = training(clock)
    watchdog.stop()
    clock.now += 1e9
    assert not watchdog.stalled()
    watchdog.start_generation(2, [2, 3])
    report(watchdog, 2, "iteration", generation=1, iteration=9, settled=True, stepSeconds=2.0)
    clock.now += 100
    assert not watchdog.stalled()
    assert watchdog.last_known() == {2: (None, "starting"), 3: (None, "starting")}

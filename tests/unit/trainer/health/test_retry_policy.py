"""A recurring failure: retried from the newest checkpoint, then from an older one, then skipped or final."""

from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.health.retry_policy import MAX_TRIES, RestartPlan, plan_restart
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport


def spike(iteration: int) -> FailureReport:
    return FailureReport(
        FailureKind.LOSS, f"lm loss is nan at iteration {iteration}", 1, 3, failed_iteration=iteration
    )


def crash(iteration: int, rank: int = 3) -> FailureReport:
    return FailureReport(FailureKind.RANK, "IndexError: sample 7", 1, rank, failed_iteration=iteration)


def restart(
    memory: dict[str, Any], report: FailureReport | None, checkpoints: list[int], on_repeat: str = "fail"
) -> RestartPlan:
    return plan_restart(memory, report, checkpoints, train_iters=100, on_repeat=on_repeat)


@pytest.mark.parametrize("failure", [spike(20), crash(20)], ids=["loss", "crash"])
def test_the_newest_then_an_older_checkpoint_is_retried_before_the_run_ends(
    failure: FailureReport,
) -> None:
    memory: dict[str, Any] = {}
    assert restart(memory, failure, [16, 8]).start == 16
    second = restart(memory, failure, [16, 8])
    assert (second.start, second.discard) == (8, (16,))
    verdict = restart(memory, failure, [16, 8]).verdict
    assert verdict is not None
    assert verdict.code == ExitCode.LOSS_NOT_FINITE
    assert verdict.message == (
        f"{failure.cause}; failed 3 times, starting from iteration 16 and iteration 8; onRepeat is fail"
    )


def test_without_an_older_checkpoint_the_run_ends_at_the_second_failure() -> None:
    memory: dict[str, Any] = {}
    assert restart(memory, spike(3), []) == RestartPlan(None, why="the newest checkpoint again")
    verdict = restart(memory, spike(3), []).verdict
    assert verdict is not None
    assert "2 times, starting from the beginning" in verdict.message


def test_skipped_iterations_stay_skipped_in_later_starts_from_before_them() -> None:
    memory: dict[str, Any] = {}
    for failed in (20, 19):
        restart(memory, spike(failed), [16, 8], "skip")
    third = restart(memory, spike(20), [16, 8], "skip")
    assert (third.start, third.skip, third.discard) == (8, (19, 20), (16,))
    assert restart(memory, None, [16, 8], "skip").skip == (19, 20)
    assert restart(memory, None, [24, 16], "skip").skip == ()


def test_a_checkpoint_beyond_the_failure_ends_the_episode() -> None:
    memory: dict[str, Any] = {}
    restart(memory, spike(20), [16, 8])
    assert restart(memory, spike(30), [24, 16]).start == 24
    assert restart(memory, spike(30), [24, 16]).start == 16


def test_a_failure_outside_of_a_step_does_not_change_the_episode() -> None:
    memory: dict[str, Any] = {}
    restart(memory, spike(20), [16, 8])
    assert restart(memory, FailureReport(FailureKind.POD, "node 1 was replaced", 1), [16, 8]).start == 16
    assert restart(memory, spike(20), [16, 8]).start == 8


def test_crashes_of_different_ranks_or_iterations_are_different_failures() -> None:
    memory: dict[str, Any] = {}
    for failure in (crash(20, rank=3), crash(20, rank=2), crash(19, rank=2)):
        assert restart(memory, failure, [16, 8]).start == 16


def test_skipping_is_bounded() -> None:
    memory: dict[str, Any] = {}
    for _ in range(MAX_TRIES - 1):
        assert restart(memory, spike(20), [16, 8], "skip").verdict is None
    assert restart(memory, spike(20), [16, 8], "skip").verdict is not None
    wide: dict[str, Any] = {}
    for failed in (20, 40):
        restart(wide, spike(failed), [16, 8], "skip")
    assert restart(wide, spike(41), [16, 8], "skip").verdict is not None


def test_the_last_iteration_is_not_skipped() -> None:
    memory: dict[str, Any] = {}
    for _ in range(2):
        restart(memory, spike(100), [96, 88], "skip")
    verdict = restart(memory, spike(100), [96, 88], "skip").verdict
    assert verdict is not None
    assert "the last iteration cannot be skipped" in verdict.message


def test_a_failure_that_the_checkpoint_of_its_iteration_has_is_retried_from_earlier_ones() -> None:
    """As of an evaluation after the last save."""
    memory: dict[str, Any] = {}
    first = restart(memory, spike(100), [100, 96, 88], "skip")
    assert (first.start, first.discard) == (96, (100,))
    second = restart(memory, spike(100), [100, 96, 88], "skip")
    assert (second.start, second.discard) == (88, (100, 96))
    verdict = restart(memory, spike(100), [100, 96, 88], "skip").verdict
    assert verdict is not None
    assert "failed 3 times" in verdict.message


def test_the_only_checkpoint_is_not_discarded() -> None:
    verdict = restart({}, spike(100), [100]).verdict
    assert verdict is not None
    assert (
        verdict.message == "lm loss is nan at iteration 100; there is no checkpoint of an earlier iteration"
    )


def unreadable(iteration: int) -> FailureReport:
    cause = f"rank 3: checkpoint of iteration {iteration} cannot be loaded: EOFError: Ran out of input"
    return FailureReport(FailureKind.RANK, cause, 1, 3, unreadable=iteration)


def test_an_unreadable_checkpoint_is_retried_once_and_then_discarded() -> None:
    memory: dict[str, Any] = {}
    first = restart(memory, unreadable(16), [16, 8])
    assert (first.start, first.discard) == (16, ())
    second = restart(memory, unreadable(16), [16, 8])
    assert (second.start, second.discard) == (8, (16,))


def test_a_run_with_a_single_unreadable_checkpoint_ends() -> None:
    memory: dict[str, Any] = {}
    restart(memory, unreadable(8), [8])
    verdict = restart(memory, unreadable(8), [8]).verdict
    assert verdict is not None
    assert verdict.code == ExitCode.NO_CHECKPOINT
    assert verdict.message.endswith("Ran out of input; there is no older one")


def test_at_most_two_unreadable_checkpoints_are_discarded() -> None:
    memory: dict[str, Any] = {}
    kept = [32, 24, 16, 8]
    for bad in (32, 24):
        restart(memory, unreadable(bad), kept)
        kept = [each for each in kept if each not in restart(memory, unreadable(bad), kept).discard]
    restart(memory, unreadable(16), kept)
    verdict = restart(memory, unreadable(16), kept).verdict
    assert verdict is not None
    assert verdict.message.endswith("none of the checkpoints 16, 24, 32 can be loaded")
    assert kept == [16, 8]


def test_a_newer_checkpoint_resets_the_count_of_unreadable_ones() -> None:
    memory: dict[str, Any] = {}
    restart(memory, unreadable(16), [16, 8])
    restart(memory, None, [24, 16])
    assert restart(memory, unreadable(16), [16, 8]).start == 16


@pytest.mark.parametrize(
    "memory",
    [
        {"episode": 3},
        {"episode": {"kind": "loss", "rank": 1, "first": "1", "last": 12, "tries": 1, "starts": [10]}},
        {"episode": {"kind": "loss", "rank": 1, "first": 1, "last": 12, "tries": 1, "starts": []}},
        {"skip": {"a": 1}},
        {"skip": ["12"]},
        {"unreadable": [1]},
        {"unreadable": {"x": 1}},
    ],
)
def test_a_memory_that_was_damaged_on_the_volume_is_forgotten(memory: dict[str, Any]) -> None:
    assert plan_restart(memory, None, [10], 100, "skip") == RestartPlan(10)
    assert not {key for key, value in memory.items() if value is not None}

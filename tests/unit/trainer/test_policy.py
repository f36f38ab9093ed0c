"""A failure that comes again: the newest checkpoint, an older one, then the end or a gap; never for ever."""

from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.health.retry_policy import MAX_TRIES, Course, next_course
from megatron_trainer.telemetry.incidents import Kind, Report


def spike(iteration: int) -> Report:
    return Report(Kind.LOSS, f"lm loss is nan at iteration {iteration}", 1, 3, failed_iteration=iteration)


def crash(iteration: int, rank: int = 3) -> Report:
    return Report(Kind.RANK, "IndexError: sample 7", 1, rank, failed_iteration=iteration)


def course(
    memory: dict[str, Any], report: Report | None, checkpoints: list[int], on_repeat: str = "fail"
) -> Course:
    return next_course(memory, report, checkpoints, train_iters=100, on_repeat=on_repeat)


@pytest.mark.parametrize("failure", [spike(20), crash(20)], ids=["loss", "crash"])
def test_first_the_newest_then_an_older_checkpoint_then_the_end_with_the_cause(failure: Report) -> None:
    memory: dict[str, Any] = {}
    assert course(memory, failure, [16, 8]).start == 16
    second = course(memory, failure, [16, 8])
    assert (second.start, second.discard) == (8, (16,))
    verdict = course(memory, failure, [16, 8]).verdict
    assert verdict is not None
    assert verdict.code == ExitCode.LOSS_NOT_FINITE
    assert verdict.message == (
        f"{failure.cause}; the same came 3 times, starting from iteration 16 and iteration 8; "
        "onRepeat is fail"
    )


def test_without_an_older_checkpoint_the_second_time_is_the_last() -> None:
    memory: dict[str, Any] = {}
    assert course(memory, spike(3), []) == Course(None, why="the newest checkpoint once more")
    verdict = course(memory, spike(3), []).verdict
    assert verdict is not None
    assert "2 times, starting from the beginning" in verdict.message


def test_skip_leaves_out_the_iterations_from_the_older_checkpoint_on_and_in_every_later_start() -> None:
    memory: dict[str, Any] = {}
    for failed in (20, 19):
        course(memory, spike(failed), [16, 8], "skip")
    third = course(memory, spike(20), [16, 8], "skip")
    assert (third.start, third.skip, third.discard) == (8, (19, 20), (16,))
    assert course(memory, None, [16, 8], "skip").skip == (19, 20)
    assert course(memory, None, [24, 16], "skip").skip == ()


def test_a_checkpoint_beyond_the_failure_ends_the_episode() -> None:
    memory: dict[str, Any] = {}
    course(memory, spike(20), [16, 8])
    assert course(memory, spike(30), [24, 16]).start == 24
    assert course(memory, spike(30), [24, 16]).start == 16


def test_a_failure_in_between_that_is_not_of_a_step_changes_nothing() -> None:
    memory: dict[str, Any] = {}
    course(memory, spike(20), [16, 8])
    assert course(memory, Report(Kind.POD, "node 1 was replaced", 1), [16, 8]).start == 16
    assert course(memory, spike(20), [16, 8]).start == 8


def test_crashes_of_different_ranks_or_iterations_are_not_one_failure() -> None:
    memory: dict[str, Any] = {}
    for failure in (crash(20, rank=3), crash(20, rank=2), crash(19, rank=2)):
        assert course(memory, failure, [16, 8]).start == 16


def test_skipping_is_bounded() -> None:
    memory: dict[str, Any] = {}
    for _ in range(MAX_TRIES - 1):
        assert course(memory, spike(20), [16, 8], "skip").verdict is None
    assert course(memory, spike(20), [16, 8], "skip").verdict is not None
    wide: dict[str, Any] = {}
    for failed in (20, 40):
        course(wide, spike(failed), [16, 8], "skip")
    assert course(wide, spike(41), [16, 8], "skip").verdict is not None


def test_the_last_iteration_is_not_left_out_since_nothing_would_be_saved() -> None:
    memory: dict[str, Any] = {}
    for _ in range(2):
        course(memory, spike(100), [96, 88], "skip")
    verdict = course(memory, spike(100), [96, 88], "skip").verdict
    assert verdict is not None
    assert "the last iteration cannot be left out" in verdict.message


def unreadable(iteration: int) -> Report:
    cause = f"rank 3: checkpoint of iteration {iteration} cannot be loaded: EOFError: Ran out of input"
    return Report(Kind.RANK, cause, 1, 3, unreadable=iteration)


def test_a_checkpoint_that_cannot_be_loaded_is_tried_once_more_and_then_set_aside() -> None:
    memory: dict[str, Any] = {}
    first = course(memory, unreadable(16), [16, 8])
    assert (first.start, first.discard) == (16, ())
    second = course(memory, unreadable(16), [16, 8])
    assert (second.start, second.discard) == (8, (16,))


def test_a_run_does_not_begin_from_nothing_because_its_only_checkpoint_cannot_be_loaded() -> None:
    memory: dict[str, Any] = {}
    course(memory, unreadable(8), [8])
    verdict = course(memory, unreadable(8), [8]).verdict
    assert verdict is not None
    assert verdict.code == ExitCode.NO_CHECKPOINT
    assert verdict.message.endswith("Ran out of input; there is no older one")


def test_not_all_checkpoints_are_set_aside_because_none_can_be_loaded() -> None:
    memory: dict[str, Any] = {}
    kept = [32, 24, 16, 8]
    for bad in (32, 24):
        course(memory, unreadable(bad), kept)
        kept = [each for each in kept if each not in course(memory, unreadable(bad), kept).discard]
    course(memory, unreadable(16), kept)
    verdict = course(memory, unreadable(16), kept).verdict
    assert verdict is not None
    assert verdict.message.endswith("none of the checkpoints 16, 24, 32 can be")
    assert kept == [16, 8]


def test_a_newer_checkpoint_clears_what_was_held_against_older_ones() -> None:
    memory: dict[str, Any] = {}
    course(memory, unreadable(16), [16, 8])
    course(memory, None, [24, 16])
    assert course(memory, unreadable(16), [16, 8]).start == 16

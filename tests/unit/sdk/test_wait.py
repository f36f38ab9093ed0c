"""Waiting for a run over HTTP, and the stream of its progress."""

import asyncio
import time

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.sdk import (
    ClusterUnreachableError,
    Connection,
    Recipe,
    Run,
    RunEndedError,
    RunFailedError,
    RunNotFoundError,
    WaitTimeoutError,
)
from megatron_operator.sdk.connection import SHORT_WATCH, pause_after_watch

from testkit.api_stand_in import ApiStandIn
from tests.unit.sdk.runs import FAILED, in_background


def test_wait_returns_at_the_phase_without_polling(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    for phase in ("Starting", "Training", "Recovering", "Training", "Succeeded"):
        api.set_status("tiny", phase=phase, observedGeneration=1)
    waiting.join()
    assert run.phase == "Succeeded"
    assert len(api.requests) == 3, "apply, one list, one watch"


@pytest.mark.parametrize(
    ("phase", "goal"),
    [
        ("Training", "Training"),
        ("Training", "Starting"),
        ("Succeeded", "Training"),
        ("Evaluating", "Training"),
        ("Starting", "Checking"),
        ("Queued", "Queued"),
    ],
)
def test_a_later_phase_of_the_normal_course_counts_as_reached(
    phase: str, goal: str, run: Run, api: ApiStandIn
) -> None:
    api.set_status("tiny", phase=phase, observedGeneration=1)
    assert run.wait(phase=goal).phase == phase


@pytest.mark.parametrize(("phase", "goal"), [("Queued", "Importing"), ("Training", "Queued")])
def test_a_queue_is_neither_before_nor_after_another_phase(
    phase: str, goal: str, run: Run, api: ApiStandIn
) -> None:
    api.set_status("tiny", phase=phase, observedGeneration=1)
    waiting = in_background(lambda: run.wait(phase=goal))
    api.wait_for_watch(1)
    api.set_status("tiny", phase=goal, observedGeneration=1)
    waiting.join()
    assert run.phase == goal


def test_wait_for_a_condition(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(lambda: run.wait(condition="Planned"))
    api.wait_for_watch(1)
    api.set_status("tiny", phase="Pending", conditions=[{"type": "Planned", "status": "Unknown"}])
    api.set_status("tiny", phase="Starting", conditions=[{"type": "Planned", "status": "True"}])
    waiting.join()
    assert run.phase == "Starting"


def test_a_failure_is_raised_with_the_last_incident(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", **FAILED)
    with pytest.raises(RunFailedError) as failed:
        run.wait()
    assert str(failed.value) == (
        "research/tiny: Failed: 10 restarts without a new checkpoint; last incident 1 (rank):"
        " rank 3 was killed by SIGKILL (worker-0 rank 3; resumed from iteration 120, 10 iterations repeated;"
        " lost 3.0 s (detect 1.0 s, load 2.0 s))"
    )
    assert failed.value.incident is not None
    assert failed.value.incident.rank == 3
    assert run.wait(phase="Failed").phase == "Failed"


def test_a_status_that_precedes_the_newest_edit_does_not_end_the_wait(
    run: Run, recipe: Recipe, connection: Connection, api: ApiStandIn
) -> None:
    api.set_status("tiny", **FAILED)
    Run.apply(recipe.replace(training={"lr": 1e-4}), connection)
    waiting = in_background(lambda: run.wait(phase="Training"))
    api.wait_for_watch(1)
    api.set_status("tiny", phase="Training", observedGeneration=2)
    waiting.join()
    assert run.phase == "Training"


def test_a_run_that_succeeded_does_not_become_suspended(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", phase="Succeeded")
    with pytest.raises(RunEndedError, match="has succeeded, and is not Suspended"):
        run.wait(phase="Suspended")


def test_wait_ends_with_the_recipe_and_at_the_time_limit(run: Run, api: ApiStandIn) -> None:
    with pytest.raises(WaitTimeoutError, match=r"is not Succeeded after 0\.05 s \(phase None\)") as late:
        run.wait(timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    api.remove("tiny")
    with pytest.raises(RunNotFoundError, match="was deleted before it was Succeeded"):
        run.wait()


@pytest.mark.parametrize("arguments", [{"phase": "Trainig"}, {"condition": "Runing"}])
def test_an_unknown_goal_is_refused(arguments: dict[str, str], run: Run) -> None:
    with pytest.raises(ValueError, match=r"unknown (phase|condition) .*; use one of .*Failed"):
        run.wait(**arguments)
    with pytest.raises(ValueError, match="either phase or condition"):
        run.wait(phase="Training", condition="Running")


def test_a_watch_that_ends_or_expires_loses_no_change(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    api.expired = True
    api.end_watches()
    api.wait_for_watch(3)
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_a_connection_that_breaks_is_restored(run: Run, api: ApiStandIn) -> None:
    waiting = in_background(run.wait)
    api.wait_for_watch(1)
    api.end_watches(abort=True)
    api.wait_for_watch(2)
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_a_wait_ends_when_another_thread_closes_the_connection(
    run: Run, api: ApiStandIn, connection: Connection
) -> None:
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(ClusterUnreachableError) as raised:
            run.wait()
        errors.append(str(raised.value))

    waiting = in_background(wait)
    api.wait_for_watch(1)
    connection.close()
    waiting.join(60)
    assert [error.partition(",")[0] for error in errors] == ["the connection is closed"]


def test_an_api_server_that_stays_away_is_reported(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0, 0.0))
    api.aborting = True
    with pytest.raises(ClusterUnreachableError, match="the API server does not respond"):
        run.wait()


def test_watches_that_break_do_not_end_a_wait_while_the_api_server_responds(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0, 0.0))
    api.broken_watches = 5
    errors: list[Exception] = []

    def wait() -> None:
        try:
            run.wait(timeout=30)
        except ClusterUnreachableError as error:
            errors.append(error)

    waiting = in_background(wait)
    while waiting.is_alive() and api.broken_watches:
        waiting.join(0.01)
    assert errors == []
    api.set_status("tiny", phase="Succeeded")
    waiting.join()
    assert run.phase == "Succeeded"


def test_an_api_server_that_fails_for_a_while_does_not_end_a_wait(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0,) * 8)
    failure = b'{"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd"}}\n'
    api.failing, api.watched = [429, 500, 503], [failure, b'{"type": "MODIFIED", "obj']
    api.set_status("tiny", phase="Training")
    waiting = in_background(run.wait)
    api.wait_for_watch(3)
    api.set_status("tiny", phase="Succeeded")
    waiting.join(60)
    assert run.phase == "Succeeded"


def test_an_api_server_that_goes_on_failing_or_refuses_ends_a_wait(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatron_operator.sdk.connection.RETRY_DELAYS", (0.0, 0.0))
    for refusals, left in (([500] * 9, 6), ([403] * 9, 8)):
        api.failing = refusals
        with pytest.raises(ApiError, match=f"{refusals[0]} InternalError: etcdserver: leader changed"):
            run.wait()
        assert len(api.failing) == left


class PausedError(ApiError):
    """Ends a wait where it would pause."""

    def __init__(self) -> None:
        super().__init__(403, "Paused", "")


def test_a_watch_that_ends_is_repeated_only_after_a_pause(
    run: Run, api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pause(_began: float) -> None:
        raise PausedError

    monkeypatch.setattr("megatron_operator.sdk.connection.pause_after_watch", pause)
    api.watched = [b""] * 1000
    with pytest.raises(PausedError):
        run.wait()
    assert len(api.watched) == 999


@pytest.mark.parametrize(("seconds", "pauses"), [(0.0, [SHORT_WATCH]), (2 * SHORT_WATCH, [])])
async def test_only_after_a_short_watch_there_is_a_pause(
    seconds: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def sleep(delay: float) -> None:
        paused.append(delay)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    await pause_after_watch(100.0 - seconds)
    assert paused == pauses


def test_stream_yields_each_change_of_the_progress_until_the_end(run: Run, api: ApiStandIn) -> None:
    api.set_status("tiny", phase="Training", progress={"iteration": 10, "trainIters": 20, "lmLoss": 2.5})
    readings = iter(run.stream())
    first = next(readings)
    assert (first.phase, first.iteration, first.train_iters, first.lm_loss) == ("Training", 10, 20, 2.5)
    api.set_status("tiny", warnings=[{"reason": "A", "message": "b"}])
    api.set_status("tiny", phase="Succeeded", progress={"iteration": 20}, checkpoint={"iteration": 20})
    [last] = readings
    assert (last.phase, last.iteration, last.checkpoint_iteration) == ("Succeeded", 20, 20)


def test_a_stream_that_is_left_early_ends_its_watch(run: Run, api: ApiStandIn) -> None:
    for _ in run.stream():
        break
    api.set_status("tiny", phase="Succeeded")
    assert run.wait().phase == "Succeeded"

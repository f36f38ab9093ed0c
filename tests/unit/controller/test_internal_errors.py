"""An unexpected error of the operator never ends the supervision of a run."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.controller import snapshot_reader, supervisor
from megatron_operator.controller.api_client import ListsLimitedError
from megatron_operator.controller.reconciler import ReconcileError

from tests.unit.controller import whole_operator
from tests.unit.controller.simulated_run import Run

MESSAGE = "KeyError: 'wandbproject'"


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


def failing(*_: object, **__: object) -> Any:
    raise KeyError("wandbproject")


@pytest.fixture
def break_planning(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(whole_operator, "desired_state", failing)


def reconcile_until(run: Run, reached: Callable[[], bool], seconds: int = 300) -> None:
    """Like `until`; the work queue retries after errors that are reported."""
    for _ in range(seconds):
        if reached():
            return
        run.cluster.pass_time(1)
        try:
            run.operator.reconcile()
        except ReconcileError:
            continue
    raise AssertionError(f"not reached: {run.status}")


def test_a_planner_that_fails_leaves_the_run_supervised(run: Run, break_planning: Callable[[], None]) -> None:
    break_planning()
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    before, generation = run.cluster.job, run.cluster.generation
    run.cluster.delete_now(run.cluster.pods[1])
    reconcile_until(run, lambda: run.cluster.generation > generation and run.trains())
    assert run.cluster.job is before
    assert run.status["recovery"]["restarts"] == 1, "recovery goes on"
    condition = run.condition("InternalError")
    assert (condition["status"], condition["reason"]) == ("True", "InternalError")
    assert condition["message"] == MESSAGE
    assert run.status["observedGeneration"] == 1, "the edit is not handled yet"


def test_an_internal_error_posts_one_event_however_often_it_is_retried(
    run: Run, break_planning: Callable[[], None]
) -> None:
    break_planning()
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    for _ in range(5):
        with pytest.raises(ReconcileError) as raised:
            run.operator.reconcile()
        assert isinstance(raised.value.__cause__, KeyError), "the log has the traceback"
    posted = [event for event in run.api.posted if event["reason"] == "InternalError"]
    assert [(event["type"], event["message"]) for event in posted] == [("Warning", MESSAGE)]


def test_a_run_whose_plan_fails_can_be_suspended(run: Run, break_planning: Callable[[], None]) -> None:
    break_planning()
    run.edit(suspend=True)
    reconcile_until(run, lambda: run.cluster.job is None and not run.cluster.pods)
    reconcile_until(run, lambda: run.status["phase"] == "Suspended")


def test_a_recipe_whose_plan_fails_can_be_deleted(run: Run, break_planning: Callable[[], None]) -> None:
    break_planning()
    run.api.recipe["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    run.operator.reconcile()
    assert run.condition("InternalError") == {}


def test_the_edit_is_applied_once_planning_works_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.cluster.job
    with monkeypatch.context() as patched:
        patched.setattr(whole_operator, "desired_state", failing)
        run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
        with pytest.raises(ReconcileError):
            run.operator.reconcile()
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())
    assert run.condition("InternalError") == {}


@pytest.mark.parametrize("step", ["update_status", "decide", "apply_decision", "observe"])
def test_a_failure_while_supervising_is_reported_and_the_pods_stay_polled(
    run: Run, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    watched: list[object] = []
    poller = run.operator._progress
    monkeypatch.setattr(poller, "watch", lambda _key, targets: watched.append(targets))
    forgotten: list[object] = []
    monkeypatch.setattr(poller, "forget", forgotten.append)
    with monkeypatch.context() as patched:
        patched.setattr(supervisor, step, failing)
        with pytest.raises(ReconcileError):
            run.operator.reconcile()
    assert run.condition("InternalError")["message"] == MESSAGE
    assert run.status["phase"] == "Training", "the rest of the status stays as it was"
    assert watched
    assert not forgotten
    run.operator.reconcile()
    assert run.condition("InternalError") == {}


def test_a_run_whose_supervision_fails_can_be_suspended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "update_status", failing)
    run.edit(suspend=True)
    reconcile_until(run, lambda: run.cluster.job is None and not run.cluster.pods)
    reconcile_until(run, lambda: run.status["phase"] == "Suspended")


def test_a_run_whose_pods_cannot_be_read_can_be_suspended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_reader, "pods_of_role", failing)
    # An undisturbed run would not be read at all.
    run.cluster.delete_now(run.cluster.pods[1])
    with pytest.raises(ReconcileError):
        run.operator.reconcile()
    assert run.condition("InternalError")["message"] == MESSAGE
    run.edit(suspend=True)
    reconcile_until(run, lambda: run.cluster.job is None)


def test_a_list_that_an_overloaded_api_server_is_spared_is_no_error_of_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run.status
    run.cluster.delete_now(run.cluster.pods[1])
    with monkeypatch.context() as patched:
        patched.setattr(run.operator._snapshots._limit, "limit", 0)
        with pytest.raises(ListsLimitedError):
            run.operator.reconcile()
    assert run.status == before, "a retry may cost no write"
    assert run.api.posted == []
    generation = run.cluster.generation
    run.until(lambda: run.cluster.generation > generation and run.trains())


def test_a_failing_search_for_capacity_does_not_stop_recovery(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.operator._reconciler._supervisor._capacity, "find", failing)
    generation = run.cluster.generation
    run.cluster.delete_now(run.cluster.pods[1])
    reconcile_until(run, lambda: run.cluster.generation > generation and run.trains())
    assert run.status["recovery"]["restarts"] == 1
    assert run.condition("InternalError")["message"] == MESSAGE


def test_a_long_error_is_cut_to_one_short_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def verbose(*_: object, **__: object) -> Any:
        raise ValueError("line\n" * 5000)

    monkeypatch.setattr(whole_operator, "desired_state", verbose)
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    with pytest.raises(ReconcileError):
        run.operator.reconcile()
    message = run.condition("InternalError")["message"]
    assert message.startswith("ValueError: line line")
    assert "\n" not in message
    assert len(message) == 300


def test_lost_connections_are_no_internal_errors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr(run.api, "get", refused)
    run.cluster.delete_now(run.cluster.pods[1])
    with pytest.raises(ConnectionRefusedError):
        run.operator.reconcile()
    assert run.condition("InternalError") == {}

"""A run whose pods the operator cannot reach."""

from dataclasses import replace
from typing import Any

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.progress_reading import Silence
from megatron_operator.lifecycle.reachability import PATIENCE
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status


def reconcile(run: Any, silent: float | None = None) -> StatusBuilder:
    """Reconcile a run whose pods have been silent for so many seconds."""
    status: StatusBuilder = run.status()
    silence = None if silent is None else Silence(silent, "run-master-0: Connection refused")
    update_status(status, replace(run.snapshot(), silence=silence))
    run.write(status)
    return status


def running(status: StatusBuilder) -> tuple[str, str, str]:
    condition = status.condition(Condition.RUNNING)
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_a_training_run_that_cannot_be_reached_reports_it_until_an_answer_comes(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.pass_time(PATIENCE - 1)
    assert running(reconcile(run, PATIENCE - 1))[1] == Reason.TRAINING
    run.pass_time(1)
    status = reconcile(run, PATIENCE)
    assert running(status) == (
        "True",
        Reason.PROGRESS_UNREACHABLE,
        "no pod has answered on port 8432 since 2027-01-15T08:00:01Z (run-master-0: Connection refused): "
        "progress is not known and hang detection is blind until one does",
    )
    assert status.phase == Phase.TRAINING
    assert [event.reason for event in status.events] == [Reason.PROGRESS_UNREACHABLE]
    run.report(iteration=51)
    assert running(reconcile(run))[1] == Reason.TRAINING


def test_a_run_that_stays_unreachable_writes_and_reports_nothing_more(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.pass_time(PATIENCE)
    reconcile(run, PATIENCE)
    run.pass_time(30.4)
    status = run.status()
    update_status(status, replace(run.snapshot(), silence=Silence(PATIENCE + 30, "another problem")))
    assert not status.changed()
    assert status.events == []


def test_pods_that_never_answered_are_unreachable_two_minutes_after_they_started(run: Any) -> None:
    run.pass_time(PATIENCE)
    assert running(reconcile(run, 600.0))[1] == Reason.PODS_RUNNING
    run.pass_time(2)
    status = reconcile(run, 600.0)
    assert running(status)[1] == Reason.PROGRESS_UNREACHABLE
    run.pass_time(2)
    assert not reconcile(run, 602.0).changed()


def test_a_restarted_operator_that_has_not_asked_yet_keeps_what_the_status_reports(run: Any) -> None:
    run.pass_time(PATIENCE + 2)
    reconcile(run, PATIENCE + 2)
    assert running(reconcile(run, None))[1] == Reason.PROGRESS_UNREACHABLE


def test_pods_that_do_not_all_run_are_not_called_unreachable(run: Any) -> None:
    run.pass_time(PATIENCE + 2)
    run.replace_worker("Pending")
    assert running(reconcile(run, 600.0))[:2] == ("False", Reason.PODS_STARTING)

"""How long the write of a status can wait."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.ledger_state import update_reported_times
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.lifecycle.time_ledger import State, open_ledger
from megatron_operator.lifecycle.write_delay import INTERVAL, may_rest_on_caches, write_delay

from tests.unit.conftest import NOW, Run


def reconcile(run: Run) -> StatusBuilder:
    status = run.status()
    update_status(status, run.snapshot())
    return status


def write(run: Run, status: StatusBuilder, manager: str = "megatron-operator", of: str = "status") -> None:
    """Write the status, as the API server records it."""
    run.write(status)
    entry = {"manager": manager, "subresource": of, "time": timestamp(run.now)}
    run.body["metadata"]["managedFields"] = [
        {"manager": "kubectl", "time": timestamp(run.now - 500)},
        entry,
    ]


@pytest.fixture
def training(run: Any) -> Run:
    """A run whose status with iteration 50 was written a second ago."""
    for iteration in (49, 50):
        run.report(iteration=iteration, checkpointIteration=40, resumedFrom=40)
        write(run, reconcile(run))
    run.pass_time(1)
    return run  # type: ignore[no-any-return]


def delay(run: Run, status: StatusBuilder | None = None) -> float:
    return write_delay(status or reconcile(run), run.reading)


def report(run: Run, **fields: Any) -> None:
    """A report of the training run."""
    run.report(**{"iteration": 60, "checkpointIteration": 40, "resumedFrom": 40, **fields})


def test_progress_alone_waits_for_the_rest_of_the_interval(training: Run) -> None:
    report(training, lmLoss=1.9, tokensPerSecond=5.0)
    assert delay(training) == INTERVAL - 2
    training.pass_time(INTERVAL - 2)
    assert delay(training) == 0


def test_an_evaluation_alone_waits(training: Run) -> None:
    report(training, iteration=50, validationIteration=50, validationLoss=2.0)
    assert delay(training) > 0


def test_seconds_in_saves_and_evaluations_alone_wait(training: Run) -> None:
    created = timestamp(NOW)
    status = training.status()
    status.set(ledger=open_ledger(created, State("train")))
    write(training, status)
    training.pass_time(1)
    report(training, saveSeconds=2.5, evaluateSeconds=7.5)
    status = reconcile(training)
    update_reported_times(status, training.reading)
    assert status.wire()["ledger"] != training.body["status"]["ledger"]
    assert delay(training, status) > 0


@pytest.mark.parametrize(
    ("before", "after"), [(Phase.TRAINING, Phase.EVALUATING), (Phase.EVALUATING, Phase.TRAINING)]
)
def test_begin_and_end_of_an_evaluation_are_written_at_once_and_need_nothing_but_the_caches(
    training: Run, before: Phase, after: Phase
) -> None:
    status = training.status()
    status.set(phase=before)
    write(training, status)
    report(training)
    status = reconcile(training)
    status.set(phase=after)
    assert delay(training, status) == 0
    assert may_rest_on_caches(status)
    status.set_condition(Condition.PLANNED, False, "Refused", "no")
    assert not may_rest_on_caches(status)


def test_goodput_alone_waits(training: Run) -> None:
    report(training, iteration=50)
    status = reconcile(training)
    status.set_recovery(goodput=0.97)
    assert status.changed()
    assert delay(training, status) > 0


def test_nothing_waits_where_nothing_changed(training: Run) -> None:
    report(training, iteration=50)
    assert delay(training) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointIteration": 60},
        {"generation": 2},
        {"trainIters": 300},
        {"warnings": [{"reason": "LossSpike", "message": "the loss rose"}]},
        {"incidents": [{"generation": 2, "kind": "rank", "detectedAt": NOW, "cause": "rank 1 died"}]},
        {"phase": "loading"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_happens_to_a_run_is_written_at_once(training: Run, fields: dict[str, Any]) -> None:
    report(training, **fields)
    assert delay(training) == 0


def test_a_condition_is_written_at_once(training: Run) -> None:
    report(training)
    status = reconcile(training)
    status.set_condition(Condition.PLANNED, False, "Refused", "no")
    assert delay(training, status) == 0


def test_an_event_is_posted_at_once(training: Run) -> None:
    report(training)
    status = reconcile(training)
    status.add_event("Refused", "no")
    assert delay(training, status) == 0


def test_progress_during_an_incident_is_written_at_once(training: Run) -> None:
    report(training)
    training.replace_worker()
    write(training, reconcile(training))
    report(training, iteration=61)
    assert delay(training) == 0


@pytest.mark.parametrize(("resumed", "written"), [(None, None), (None, 0), (40, 40)])
def test_the_first_iteration_after_a_start_is_written_at_once(
    run: Any, resumed: int | None, written: int | None
) -> None:
    run.report(iteration=written, resumedFrom=resumed)
    write(run, reconcile(run))
    run.report(iteration=(written or 0) + 1, resumedFrom=resumed)
    assert delay(run) == 0
    write(run, reconcile(run))
    run.report(iteration=(written or 0) + 2, resumedFrom=resumed)
    assert delay(run) > 0


def test_parts_that_this_version_cannot_read_are_removed_at_once(training: Run) -> None:
    training.body["status"] = training.body["status"] | {"later": 1}
    report(training)
    assert delay(training) == 0


@pytest.mark.parametrize(("manager", "of"), [("someone", "status"), ("megatron-operator", "")])
def test_writes_of_others_do_not_count(training: Run, manager: str, of: str) -> None:
    write(training, training.status(), manager, of)
    report(training)
    assert delay(training) == 0, "the last write of the status is not known"


def test_a_clock_that_was_set_back_delays_nothing(training: Run) -> None:
    report(training)
    training.pass_time(-3600)
    assert delay(training) == 0


def test_a_clock_that_is_a_little_behind_the_api_servers_is_no_reason_to_write(training: Run) -> None:
    report(training)
    training.pass_time(-3)
    assert delay(training) == INTERVAL

"""The ledger of a run's time over a simulated cluster: it adds up wherever the operator dies."""

import pytest
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.lifecycle.time_ledger import Account, account

from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


def ledger_of(run: Run) -> Account:
    """The account up to now, whose sum is the wall clock."""
    status, dropped = read_status(run.status)
    assert dropped == ()
    assert status.ledger is not None
    assert status.recovery is not None
    now = run.cluster.now
    found = account(status.ledger, status.recovery.history, now)
    created = seconds(run.api.recipe["metadata"]["creationTimestamp"])
    assert created is not None
    assert sum(found.ticks.values()) == round((now - created) * 100)
    return found


def seconds_of(run: Run, *names: str) -> dict[str, float]:
    found = ledger_of(run).ticks
    return {name: found.get(name, 0) / 100 for name in names}


@pytest.mark.parametrize("writes", [None, *range(5)])
def test_a_lost_pod_costs_the_same_wherever_the_operator_dies(run: Run, writes: int | None) -> None:
    run.until(lambda: run.cluster.iteration > 60)
    before = seconds_of(run, "schedule", "start", "detect", "redo")
    run.cluster.delete_now(run.cluster.pods[1])
    run.operator.die_after(writes)
    run.until(lambda: bool(run.incidents) and "redo" in run.incidents[-1].get("seconds", {}))
    phases = run.incidents[-1]["seconds"]
    after = ledger_of(run)
    for name, earlier in before.items():
        assert after.ticks.get(name, 0) / 100 - earlier == pytest.approx(phases.get(name, 0.0)), name
    cause = run.incidents[-1]["cause"]
    assert {loss for loss in after.losses if loss[0] == "redo"} == {
        ("redo", cause, run.incidents[-1].get("node"))
    }


def test_a_suspension_is_idle_and_a_new_start_has_no_incident(run: Run) -> None:
    run.edit(suspend=True)
    run.until(lambda: run.status["phase"] == "Suspended" and not run.cluster.pods)
    for _ in range(100):
        run.cluster.pass_time(1)
    run.edit(suspend=False)
    run.until(run.trains)
    found = ledger_of(run)
    assert found.ticks["idle"] >= 100 * 100
    assert ("idle", "Suspended", None) in found.losses
    assert {loss for loss in found.losses if loss[1] == "Restarted"}


def test_a_run_that_is_left_alone_writes_no_ledger(run: Run) -> None:
    run.until(lambda: run.cluster.iteration > 60)
    before = run.status["ledger"]
    iteration = run.cluster.iteration
    run.until(lambda: run.cluster.iteration > iteration + 30)
    assert run.status["ledger"] == before
    assert ledger_of(run).ticks["train"] > 0

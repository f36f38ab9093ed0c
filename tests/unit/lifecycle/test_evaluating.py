"""The phases of a run whose ranks evaluate, and the evaluations that its status has."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_contract.limits import MAX_EVALUATIONS
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.lifecycle.readiness import set_readiness
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import SHORTEST_EVALUATION

from tests.unit.lifecycle.reconciling import reason, reconcile

EVALUATIONS = [{"iteration": 10 * n, "loss": round(3.0 - n / 100, 2)} for n in range(1, MAX_EVALUATIONS + 3)]


def report(run: Any, phase: str, unchanged: float = 0.0, **fields: Any) -> StatusBuilder:
    """Reconcile after a report of this phase, which pods have repeated for `unchanged` seconds."""
    run.report(**{"iteration": 50, "checkpointIteration": 40, "phase": phase} | fields)
    run.reading = replace(run.reading, unchanged=unchanged)
    return reconcile(run)


@pytest.fixture
def evaluating(run: Any) -> Any:
    """A run in the phase Evaluating."""
    report(run, "training")
    assert report(run, "evaluating", SHORTEST_EVALUATION).phase == Phase.EVALUATING
    return run


def test_an_evaluation_is_a_phase_once_it_lasts(run: Any) -> None:
    report(run, "training")
    for unchanged in (0.0, SHORTEST_EVALUATION - 0.5):
        assert report(run, "evaluating", unchanged).phase == Phase.TRAINING
    assert report(run, "evaluating", SHORTEST_EVALUATION).phase == Phase.EVALUATING


@pytest.mark.parametrize("phase", ["training", "saving"])
def test_its_end_is_shown_at_once(evaluating: Any, phase: str) -> None:
    assert report(evaluating, phase).phase == Phase.TRAINING


def test_a_run_that_evaluates_is_running_and_ready(evaluating: Any) -> None:
    status: StatusBuilder = evaluating.status()
    status.observe_generation()
    set_readiness(status)
    assert reason(status, Condition.RUNNING) == "Training"
    assert status.is_true(Condition.READY)


def test_a_restarted_operator_keeps_the_phase(evaluating: Any) -> None:
    evaluating.reading = None
    assert not reconcile(evaluating).changed()
    assert report(evaluating, "evaluating", unchanged=0.0).phase == Phase.EVALUATING


def test_a_gang_that_starts_again_is_recovering(evaluating: Any) -> None:
    evaluating.replace_worker()
    assert report(evaluating, "rendezvous").phase == Phase.RECOVERING


def test_pods_that_have_not_noticed_the_loss_of_another_one_do_not_hide_it(evaluating: Any) -> None:
    evaluating.replace_worker()
    assert report(evaluating, "evaluating", 2 * SHORTEST_EVALUATION).phase == Phase.RECOVERING


def test_a_run_that_is_preempted_is_queued(evaluating: Any) -> None:
    evaluating.job["spec"]["runPolicy"]["suspend"] = True
    evaluating.pods = []
    assert reconcile(evaluating).phase == Phase.QUEUED


def test_the_status_has_the_evaluations_that_pods_report(run: Any) -> None:
    last = {"validationIteration": 50, "validationLoss": 2.12345678}
    found = report(run, "training", **last, evaluations=EVALUATIONS[:2]).wire()["validation"]
    assert found == {"iteration": 50, "loss": 2.1235, "evaluations": EVALUATIONS[:2]}
    found = report(run, "training", **last).wire()["validation"]
    assert found == {"iteration": 50, "loss": 2.1235}, "a trainer of an earlier release reports none"


def test_no_report_adds_more_evaluations_than_the_crd_allows(run: Any) -> None:
    last = {"validationIteration": 50, "validationLoss": 2.0}
    validation: Any = report(run, "training", **last, evaluations=EVALUATIONS).wire()["validation"]
    assert validation["evaluations"] == EVALUATIONS[-MAX_EVALUATIONS:]

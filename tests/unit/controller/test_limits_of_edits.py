"""The limits of a run are those of the spec that it follows, not of an edit that is refused or waits."""

from typing import Any

import pytest

from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run

UNKNOWN = {"accelerator": {"type": "unknown", "count": 16}}


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


def refuse(run: Run, **edit: Any) -> None:
    run.edit(**UNKNOWN, **edit)
    run.until(lambda: run.condition("Planned")["reason"] == "Refused")


def lose_a_pod(run: Run) -> None:
    before = len(run.incidents)
    run.cluster.fail(run.cluster.pods[1], 137, "died")
    run.until(lambda: len(run.incidents) > before and (run.trains() or run.status["phase"] == "Failed"))


def test_a_refused_edit_does_not_fail_the_run_by_its_number_of_restarts(run: Run) -> None:
    refuse(run, recovery={"maxRestarts": 0})
    lose_a_pod(run)
    assert run.status["phase"] == "Training"


def test_an_edit_that_waits_for_a_claim_does_not_fail_the_run_by_its_number_of_restarts(run: Run) -> None:
    claim = run.api.claims.pop(CLAIM)
    run.edit(recovery={"maxRestarts": 0})
    run.until(lambda: run.condition("Prepared")["reason"] == "VolumeClaimMissing")
    lose_a_pod(run)
    assert run.status["phase"] == "Training"
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.status["phase"] == "Failed")
    assert run.status["accepted"]["maxRestarts"] == 0


def test_a_refused_edit_does_not_restart_the_run_by_its_time_limit(run: Run) -> None:
    job = run.cluster.job
    run.edit(recovery={"hangTimeout": "off"})
    run.until(lambda: run.cluster.job not in (None, job) and run.trains())
    refuse(run, recovery={"hangTimeout": "60s"})
    run.cluster.hanging = True
    for _ in range(600):
        run.cluster.pass_time(1)
        run.operator.reconcile()
    assert run.incidents == []


def test_a_number_of_restarts_that_was_edited_alone_holds_after_a_later_edit_is_refused(run: Run) -> None:
    job = run.cluster.job
    run.edit(recovery={"maxRestarts": 0})
    run.until(lambda: run.status["observedGeneration"] == 2)
    assert run.cluster.job is job
    refuse(run, recovery={"maxRestarts": 5})
    lose_a_pod(run)
    assert run.status["phase"] == "Failed"


def test_a_run_that_ends_while_an_edit_is_refused_exports_as_the_spec_before(run: Run) -> None:
    export = {"huggingFace": {"path": "/data/out"}}
    refuse(run, export=export)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] in ("Succeeded", "Exporting"))
    assert run.status["phase"] == "Succeeded"

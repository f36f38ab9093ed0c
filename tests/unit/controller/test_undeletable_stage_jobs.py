"""An admission policy refuses to have an import or export Job deleted: a condition shows why."""

from collections.abc import Iterator

import pytest
from megatron_operator.controller.api_resources import BATCH_JOBS

from tests.unit.controller.converting import (
    EXPORT,
    IMPORT,
    RESULT,
    converting_run,
    end,
    reconcile,
    until_exporting,
)
from tests.unit.controller.deletion_policy import DENIED, Policy
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


@pytest.fixture
def policy(run: Run, monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = Policy(run, BATCH_JOBS)
    monkeypatch.setattr(run.api, "delete", policy.delete)
    return policy


def shows_refusal(run: Run, condition: str, noun: str) -> bool:
    found = run.condition(condition)
    return found["status"] == "False" and f"{noun} job cannot be deleted: {DENIED}" in found["message"]


def test_a_suspended_run_shows_that_its_import_cannot_be_deleted(run: Run, policy: Policy) -> None:
    reconcile(run)
    run.edit(suspend=True)
    reconcile(run)
    assert shows_refusal(run, "Running", "import")
    assert run.status["phase"] == "Suspended"
    policy.active = False
    run.until(lambda: IMPORT not in run.api.batch_jobs)
    run.edit(suspend=False)
    run.until(lambda: IMPORT in run.api.batch_jobs)
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)


def test_an_edit_of_the_weights_shows_that_their_import_cannot_be_replaced(run: Run, policy: Policy) -> None:
    reconcile(run)
    before = run.api.batch_jobs[IMPORT]
    run.edit(init={"from": {"huggingFace": {"path": "/data/other"}}})
    reconcile(run)
    assert shows_refusal(run, "Running", "import")
    assert run.condition("Ready")["reason"] == "JobRefused"
    assert run.api.batch_jobs[IMPORT] is before
    policy.active = False
    run.until(lambda: run.api.batch_jobs.get(IMPORT, before) is not before)
    assert run.condition("Running") == {}


def test_a_run_does_not_train_on_while_its_export_cannot_be_deleted(run: Run, policy: Policy) -> None:
    until_exporting(run)
    before = run.api.job()
    run.edit(training={"trainIters": 4000})
    reconcile(run)
    assert shows_refusal(run, "Running", "export")
    assert run.condition("Succeeded") == {}
    assert run.status["observedGeneration"] < run.api.recipe["metadata"]["generation"]
    assert run.api.job() == before
    policy.active = False
    run.until(lambda: EXPORT not in run.api.batch_jobs)
    run.until(lambda: run.api.job() not in (None, before))


def test_a_run_without_its_export_succeeds_once_the_export_can_be_deleted(run: Run, policy: Policy) -> None:
    until_exporting(run)
    run.edit(export=None)
    reconcile(run)
    assert shows_refusal(run, "Exported", "export")
    assert EXPORT in run.api.batch_jobs
    policy.active = False
    run.until(lambda: run.condition("Exported") == {})
    assert EXPORT not in run.api.batch_jobs
    assert run.status["phase"] == "Succeeded"

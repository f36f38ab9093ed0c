"""What is common to the Jobs of a run: one that is refused or has no pods, and its end in a suspended run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from megatron_operator.api.labels import LABEL_ROLE
from megatron_operator.controller import job_events
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, Resource

from tests.unit.controller.converting import EXPORT, IMPORT, RESULT, converting_run, end, reconcile
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


@pytest.mark.parametrize(
    ("message", "reason"),
    [("exceeded quota: limit", "QuotaExceeded"), ("violates PodSecurity", "PodsNotCreated")],
)
def test_why_a_job_has_no_pods_is_reported_until_it_has_one(
    run: Run, message: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_events, "RECENT", 0.0)
    reconcile(run)
    job = run.api.batch_jobs[IMPORT]
    of_another = {"involvedObject": {"uid": "other"}, "reason": "FailedCreate", "message": "not of this Job"}
    about = {"uid": job["metadata"]["uid"]}
    run.api.events = [{"involvedObject": about, "reason": "FailedCreate", "message": message}, of_another]
    reconcile(run)
    assert (run.condition("Imported")["reason"], run.condition("Imported")["message"]) == (reason, message)
    job["status"] = {"active": 1}
    reconcile(run)
    assert run.condition("Imported")["reason"] == "Importing"


REFUSALS = [("exceeded quota: count/jobs.batch", "QuotaExceeded"), ("policy denies Jobs", "JobRefused")]


@contextmanager
def refused_jobs(run: Run, message: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The API server refuses batch Jobs."""
    create = run.api.create

    async def refuse(resource: Resource, body: Any) -> Any:
        if resource is BATCH_JOBS:
            raise ApiError(403, "Forbidden", message)
        return await create(resource, body)

    with monkeypatch.context() as patch:
        patch.setattr(run.api, "create", refuse)
        yield


@pytest.mark.parametrize(("message", "reason"), REFUSALS)
def test_a_refused_import_is_reported_and_begins_once_it_is_allowed(
    run: Run, message: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused_jobs(run, message, monkeypatch):
        reconcile(run)
        running = run.condition("Running")
        assert (run.status["phase"], running["reason"], running["message"]) == ("Pending", reason, message)
        assert bool(run.condition("Stalled")) == (reason == "JobRefused")
    reconcile(run)
    assert (run.status["phase"], run.condition("Imported")["reason"]) == ("Importing", "Importing")
    assert IMPORT in run.api.batch_jobs


@pytest.mark.parametrize(("message", "reason"), REFUSALS)
def test_a_refused_export_of_a_run_that_has_trained_is_reported_and_begins_once_it_is_allowed(
    run: Run, message: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile(run)
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    with refused_jobs(run, message, monkeypatch):
        run.cluster.pass_time(TOTAL)
        reconcile(run)
        exported = run.condition("Exported")
        assert (run.status["phase"], exported["reason"]) == ("Exporting", reason)
        assert exported["message"] == message
        assert run.condition("Ready")["status"] == "False"
    reconcile(run)
    assert run.condition("Exported")["reason"] == "Exporting"
    assert EXPORT in run.api.batch_jobs


def test_suspending_ends_an_import_and_continuing_begins_it_again(run: Run) -> None:
    reconcile(run)
    status = {"phase": "Running"}
    metadata = {"name": f"{IMPORT}-x", "labels": {LABEL_ROLE: "import"}}
    run.api.batch_pods = [{"metadata": metadata, "spec": {}, "status": status}]
    run.edit(suspend=True)
    reconcile(run)
    assert IMPORT not in run.api.batch_jobs
    assert (run.condition("Running")["reason"], run.condition("Imported")["reason"]) == ("Suspended",) * 2
    assert run.condition("Running")["message"] == "pods of the import job are ending: 1"
    status["phase"] = "Succeeded"
    reconcile(run)
    assert (run.status["phase"], run.condition("Running")["message"]) == ("Suspended", "no pod is left")
    run.api.batch_pods = []
    run.edit(suspend=False)
    reconcile(run)
    assert (run.status["phase"], run.condition("Imported")["reason"]) == ("Importing", "Importing")
    assert IMPORT in run.api.batch_jobs


def test_suspending_keeps_a_job_of_that_name_that_is_not_the_runs(run: Run) -> None:
    reconcile(run)
    run.api.batch_jobs[IMPORT]["metadata"]["ownerReferences"] = []
    foreign = run.api.batch_jobs[IMPORT]
    run.edit(suspend=True)
    reconcile(run)
    assert run.api.batch_jobs[IMPORT] == foreign
    assert run.status["phase"] == "Suspended"

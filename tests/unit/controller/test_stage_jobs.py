"""What is common to the Jobs of a run: why one has no pods, and its end where the run is suspended."""

from collections.abc import Iterator

import pytest
from megatron_operator.api.labels import LABEL_ROLE
from megatron_operator.controller import job_events

from tests.unit.controller.converting import IMPORT, converting_run, reconcile
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

"""Runs in a queue of Kueue: its reason for the wait is in the status, and their priority can be changed."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import WORKLOADS
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import whole_operator
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run

LABEL = "kueue.x-k8s.io/priority-class"
MISSING = "WorkloadPriorityClassMissing"


def in_queue(name: str | None) -> dict[str, str]:
    return {"queue": "research"} | ({"workloadPriorityClassName": name} if name else {})


@pytest.fixture
def run() -> Iterator[Run]:
    """A run in a queue, of the class `low`; `low` and `high` exist."""
    run = Run()
    run.api.workload_priority_classes = {"low", "high"}
    run.edit(scheduling=in_queue("low"))
    yield run
    run.operator.close()


def job(run: Run) -> Any:
    found = run.api.job()
    assert found is not None
    return found


def admit(run: Run) -> None:
    """Let Kueue resume the run's job."""
    job(run)["spec"]["runPolicy"]["suspend"] = False


def trains_in_queue(run: Run) -> None:
    run.until(lambda: run.api.job() is not None)
    admit(run)
    run.until(run.trains)


def name_in_platform(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the platform name this class from now on."""
    platform = whole_operator.CONFIG.platform.model_copy(update={"workload_priority_class_name": name})
    monkeypatch.setattr(whole_operator, "CONFIG", Config(platform, whole_operator.CONFIG.catalog))


def reconcile(run: Run, seconds: int, step: int = 1) -> None:
    for _ in range(seconds // step):
        run.cluster.pass_time(step)
        run.operator.reconcile()


@pytest.mark.parametrize(("name", "label"), [("high", "high"), (None, "low")], ids=["another", "none"])
def test_another_priority_class_changes_the_label_of_the_job_and_none_changes_nothing(
    run: Run, name: str | None, label: str
) -> None:
    trains_in_queue(run)
    before = job(run)["metadata"]["uid"]
    run.edit(scheduling=in_queue(name))
    run.until(lambda: run.status["observedGeneration"] == 3 and run.api.job() is not None)
    assert job(run)["metadata"]["labels"].get(LABEL) == label
    assert job(run)["metadata"]["uid"] == before


def test_a_job_without_a_class_is_created_again_for_one_that_the_recipe_names(run: Run) -> None:
    run.edit(scheduling=in_queue(None))
    trains_in_queue(run)
    before = job(run)["metadata"]["uid"]
    run.edit(scheduling=in_queue("high"))
    run.until(lambda: run.api.job() is not None and job(run)["metadata"]["uid"] != before)
    assert job(run)["metadata"]["labels"][LABEL] == "high"


def test_a_run_that_trains_is_not_interrupted_by_a_class_of_the_platform(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.edit(scheduling=in_queue(None))
    trains_in_queue(run)
    before = job(run)["metadata"]["uid"]
    name_in_platform(monkeypatch, "high")
    run.edit(scheduling=in_queue(None) | {"nodeSelector": {}})
    run.until(lambda: run.status["observedGeneration"] == 4)
    reconcile(run, 10)
    assert job(run)["metadata"]["uid"] == before
    assert run.trains()


def test_a_job_that_waits_gets_another_class_of_the_platform_once_the_run_is_resumed_or_edited(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_in_platform(monkeypatch, "low")
    run.edit(scheduling=in_queue(None))
    run.until(lambda: run.api.job() is not None)
    before = job(run)["metadata"]["uid"]
    name_in_platform(monkeypatch, "high")
    reconcile(run, 300, step=10)
    assert job(run)["metadata"]["labels"][LABEL] == "low"
    run.edit(scheduling=in_queue(None) | {"nodeSelector": {}})
    run.until(lambda: job(run)["metadata"]["labels"][LABEL] == "high")
    assert job(run)["metadata"]["uid"] == before
    name_in_platform(monkeypatch, "low")
    run.edit(suspend=True)
    run.until(lambda: run.api.job() is None)
    run.edit(suspend=False)
    run.until(lambda: run.api.job() is not None)
    assert job(run)["metadata"]["labels"][LABEL] == "low"


@pytest.mark.parametrize("name", ["high", "a-typo"])
def test_a_run_that_has_succeeded_keeps_its_job_whatever_class_is_named(run: Run, name: str) -> None:
    run.edit(scheduling=in_queue(None))
    trains_in_queue(run)
    run.cluster.pass_time(TOTAL)
    run.until(lambda: run.status["phase"] == "Succeeded")
    before = job(run)["metadata"]["uid"]
    run.edit(scheduling=in_queue(name))
    reconcile(run, 10)
    assert run.status["phase"] == "Succeeded"
    assert run.condition("Running").get("reason") != MISSING
    assert job(run)["metadata"]["uid"] == before


def test_a_class_that_does_not_exist_is_not_given_to_a_job_that_runs(run: Run) -> None:
    trains_in_queue(run)
    run.edit(scheduling=in_queue("higher"))
    reconcile(run, 5)
    assert run.condition("Prepared")["reason"] == MISSING
    assert run.status["phase"] == "Training"
    assert job(run)["metadata"]["labels"][LABEL] == "low"
    assert run.api.workload_priority_classes is not None
    run.api.workload_priority_classes.add("higher")
    run.until(lambda: job(run)["metadata"]["labels"][LABEL] == "higher")


def test_a_run_whose_class_does_not_exist_has_no_job_until_it_does(run: Run) -> None:
    run.edit(scheduling=in_queue("higher"))
    reconcile(run, 5)
    assert run.condition("Running")["reason"] == MISSING
    assert run.condition("Running")["message"].startswith(
        "there is no WorkloadPriorityClass higher; create it"
    )
    assert run.api.job() is None
    run.api.workload_priority_classes = {"higher"}
    trains_in_queue(run)


def test_the_name_of_a_class_is_trusted_where_classes_may_not_be_listed(run: Run) -> None:
    run.api.workload_priority_classes = None
    trains_in_queue(run)
    assert job(run)["metadata"]["labels"][LABEL] == "low"


def test_a_queued_run_has_kueues_reason_which_is_read_less_often_the_longer_it_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []
    find = run.api.find

    async def recorded(resource: Any, *rest: Any, **named: Any) -> Any:
        if resource is WORKLOADS:
            reads.append(run.cluster.now)
        return await find(resource, *rest, **named)

    monkeypatch.setattr(run.api, "find", recorded)
    run.until(lambda: run.cluster.job is not None)
    assert run.cluster.job is not None
    run.cluster.job.size = 0
    refused = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    run.api.workloads = [{"spec": {}, "status": {"conditions": [refused]}}]
    reason = "waits for admission by queue research: insufficient quota"
    run.until(lambda: run.condition("Running").get("message") == reason, seconds=20)
    reads.clear()
    reconcile(run, 1200, step=10)
    between = [after - before for before, after in itertools.pairwise(reads)]
    assert between == sorted(between)
    assert len(reads) < 15, f"read {len(reads)} times in 20 minutes"
    assert between[-1] > 200
    assert run.condition("Running")["message"] == reason, "also from the caches"
    refused["message"] = "no room in a rack"
    reconcile(run, 600, step=10)
    assert run.condition("Running")["message"].endswith("no room in a rack")


def test_a_job_that_is_new_has_kueues_reason_soon_however_long_the_run_has_not_run(run: Run) -> None:
    run.edit(suspend=True)
    reconcile(run, 10)
    reconcile(run, 86_400, step=3600)
    refused = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    run.edit(suspend=False)
    run.until(lambda: run.cluster.job is not None)
    assert run.cluster.job is not None
    run.cluster.job.size = 0
    run.api.workloads = [{"spec": {}, "status": {"conditions": [refused]}}]
    run.until(lambda: run.condition("Running")["message"].endswith(": insufficient quota"), seconds=20)


def test_a_reason_that_may_not_be_read_any_more_is_dropped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    run.until(lambda: run.cluster.job is not None)
    assert run.cluster.job is not None
    run.cluster.job.size = 0
    run.api.workloads = [{"spec": {}, "status": {"conditions": [refused]}}]
    run.until(lambda: run.condition("Running")["message"].endswith(": insufficient quota"), seconds=20)
    find = run.api.find

    async def forbidden(resource: Any, *rest: Any, **named: Any) -> Any:
        if resource is WORKLOADS:
            raise ApiError(403, "Forbidden", "workloads is forbidden")
        return await find(resource, *rest, **named)

    monkeypatch.setattr(run.api, "find", forbidden)
    run.until(lambda: run.condition("Running")["message"].endswith("by queue research"), seconds=60)


def test_a_job_that_is_preempted_has_kueues_reason_at_once(run: Run) -> None:
    run.until(lambda: run.cluster.job is not None)
    assert run.cluster.job is not None
    size, run.cluster.job.size = run.cluster.job.size, 0
    refused = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    run.api.workloads = [{"spec": {}, "status": {"conditions": [refused]}}]
    reconcile(run, 1200, step=10)
    run.cluster.job.size = size
    admit(run)
    run.until(run.trains)
    refused["message"] = "preempted by another run"
    job(run)["spec"]["runPolicy"]["suspend"] = True
    run.cluster.job.size = 0
    run.cluster.pods.clear()
    run.until(lambda: run.condition("Running")["message"].endswith(": preempted by another run"), seconds=20)

"""A run's job is found whatever its kind, and created of the kind that the platform has now."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.controller.action_runner import execute
from megatron_operator.controller.api_client import BATCH_JOBS, JOBS, JOBSETS, PODS, Resource
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.snapshot_reader import (
    JobSetsDisabledError,
    SnapshotReader,
)
from megatron_operator.lifecycle.actions import DeletePods, ForceDeletePods, ReplacePods
from megatron_operator.lifecycle.status_builder import StatusBuilder

OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}


class Api:
    """Holds training jobs, and notes what is read and deleted."""

    def __init__(self, **jobs: dict[str, Any]) -> None:
        self.jobs = {JOBS: jobs.get("pytorchjob"), JOBSETS: jobs.get("jobset")}
        self.read: list[str] = []
        self.deleted: list[tuple[Resource, str, int | None, bool]] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("default", "run")
        self.read.append(resource.plural)
        return self.jobs[resource]

    async def delete(
        self, resource: Resource, target: Any, grace_seconds: int | None = None, *, foreground: bool = False
    ) -> None:
        self.deleted.append((resource, target["metadata"]["name"], grace_seconds, foreground))


def job(kind: str, *, own: bool = True) -> dict[str, Any]:
    version = {"PyTorchJob": "kubeflow.org/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}[kind]
    metadata: dict[str, Any] = {"name": "run", "namespace": "default", "uid": f"uid-of-{kind}"}
    if own:
        metadata |= {"labels": {LABEL_RECIPE: "run"}, "ownerReferences": [OWNER]}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def status_of(recorded: str | None, **fields: Any) -> StatusBuilder:
    status: dict[str, Any] = {
        "job": {"name": "run", "uid": "j", "hash": "h"} | ({"kind": recorded} if recorded else {})
    }
    metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return StatusBuilder.of({"metadata": metadata, "spec": {}, "status": status | fields}, 0.0)


def reader(api: Any, *, jobsets: bool = True) -> SnapshotReader:
    unused: Any = None
    return SnapshotReader(api, unused, unused, Caches(jobsets=jobsets))


def found(api: Any, recorded: str | None = None) -> Any:
    return asyncio.run(reader(api).read_job(status_of(recorded)))


@pytest.mark.parametrize(("recorded", "plural"), [(None, "pytorchjobs"), ("JobSet", "jobsets")])
def test_a_job_of_the_recorded_kind_costs_one_read(recorded: str | None, plural: str) -> None:
    api = Api(pytorchjob=job("PyTorchJob"), jobset=job("JobSet"))
    assert found(api, recorded)["kind"] == (recorded or "PyTorchJob")
    assert api.read == [plural]


@pytest.mark.parametrize("recorded", [None, "JobSet"])
@pytest.mark.parametrize("kind", ["PyTorchJob", "JobSet"])
def test_the_recipes_own_job_is_found_whatever_the_status_records(kind: str, recorded: str | None) -> None:
    """The operator may have died between creating the job and writing the status."""
    assert found(Api(**{kind.lower(): job(kind)}), recorded)["kind"] == kind


def test_an_operator_without_jobsets_reads_none() -> None:
    api = Api(jobset=job("JobSet"))
    assert asyncio.run(reader(api, jobsets=False).read_job(status_of(None))) is None
    assert api.read == ["pytorchjobs"]


def test_a_run_with_a_jobset_is_not_judged_by_an_operator_without_jobsets() -> None:
    """It would take the job for lost. The JobSet is not read either: there may be no right to."""
    api, status = Api(jobset=job("JobSet")), status_of("JobSet")
    without = reader(api, jobsets=False)
    with pytest.raises(JobSetsDisabledError, match="set `jobSets` of the chart"):
        asyncio.run(without.read(status))
    assert without.from_cache(status) is None
    assert asyncio.run(without.read_job(status)) is None
    assert "jobsets" not in api.read


def test_a_jobset_of_somebody_else_does_not_concern_a_run_on_pytorchjob() -> None:
    assert found(Api(jobset=job("JobSet", own=False))) is None


def test_the_own_job_counts_more_than_one_of_somebody_else() -> None:
    api = Api(pytorchjob=job("PyTorchJob", own=False), jobset=job("JobSet"))
    assert found(api)["kind"] == "JobSet"


def test_without_an_own_job_that_of_somebody_else_is_reported() -> None:
    foreign = job("PyTorchJob", own=False)
    assert found(Api(pytorchjob=foreign)) == foreign


def pod(*, on_jobset: bool) -> dict[str, Any]:
    label = "jobset.sigs.k8s.io/jobset-name" if on_jobset else "training.kubeflow.org/job-name"
    owner = {"kind": "Job", "name": "run-worker-0", "uid": "b"} if on_jobset else {"kind": "PyTorchJob"}
    metadata = {"name": "pod", "namespace": "default", "uid": "p", "labels": {label: "run"}}
    return {"metadata": metadata | {"ownerReferences": [owner]}}


def test_a_pod_of_a_jobset_is_deleted_with_its_job_which_waits_for_the_pod() -> None:
    api: Any = Api()
    pods = (pod(on_jobset=True),)
    asyncio.run(execute(api, [DeletePods(pods), ForceDeletePods(pods), ReplacePods(pods)]))
    with_job = (BATCH_JOBS, "run-worker-0", None, True)
    assert api.deleted == [
        (PODS, "pod", 10, False), with_job, (PODS, "pod", 0, False), with_job, with_job,
    ]  # fmt: skip


def test_a_pod_of_a_pytorchjob_is_deleted_alone() -> None:
    api: Any = Api()
    pods = (pod(on_jobset=False),)
    asyncio.run(execute(api, [DeletePods(pods), ForceDeletePods(pods)]))
    assert api.deleted == [(PODS, "pod", 10, False), (PODS, "pod", 0, False)]

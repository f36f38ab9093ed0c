"""A run's job is found whatever its kind, and created of the kind that the platform has now."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.controller.action_runner import execute
from megatron_operator.controller.api_resources import (
    BATCH_JOBS,
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_JOBS,
    TRAINING_RUNTIMES,
    Resource,
)
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.snapshot_reader import (
    JobKindDisabledError,
    SnapshotReader,
    TemplatesMissingError,
)
from megatron_operator.lifecycle.actions import DeletePods, ForceDeletePods, ReplacePods
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import trainjob

from tests.unit.controller.silent_readers import Silent

TRAINJOBS = TRAINING_JOBS["TrainJob"]

OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}
VERSIONS = {
    "PyTorchJob": "kubeflow.org/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}


class Api:
    """Holds training jobs by kind, and notes what is read and deleted."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        kinds: dict[Resource, str] = {JOBS: "PyTorchJob", JOBSETS: "JobSet", TRAINJOBS: "TrainJob"}
        found = {each["kind"]: each for each in jobs}
        self.jobs = {resource: found.get(kind) for resource, kind in kinds.items()}
        self.jobs[TRAINING_RUNTIMES] = found.get("TrainingRuntime")
        self.read: list[str] = []
        self.deleted: list[tuple[Resource, str, int | None, bool]] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("default", "run-worker-0" if resource is BATCH_JOBS else "run")
        self.read.append(resource.plural)
        return self.jobs[resource]

    async def find(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def delete(
        self, resource: Resource, target: Any, grace_seconds: int | None = None, *, foreground: bool = False
    ) -> None:
        self.deleted.append((resource, target["metadata"]["name"], grace_seconds, foreground))


def job(kind: str, *, own: bool = True) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "run", "namespace": "default", "uid": f"uid-of-{kind}"}
    if own:
        metadata |= {"labels": {LABEL_RECIPE: "run"}, "ownerReferences": [OWNER]}
    spec = {"trainer": {"numNodes": 1, "numProcPerNode": 1}}
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": spec}


def status_of(recorded: str | None, **fields: Any) -> StatusBuilder:
    status: dict[str, Any] = {
        "job": {"name": "run", "uid": "j", "hash": "h"} | ({"kind": recorded} if recorded else {})
    }
    metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return StatusBuilder.of({"metadata": metadata, "spec": {}, "status": status | fields}, 0.0)


def reader(api: Any, *kinds: str) -> SnapshotReader:
    unused: Any = Silent()
    return SnapshotReader(api, unused, unused, Caches(kinds or tuple(VERSIONS)))


def found(api: Any, recorded: str | None = None) -> Any:
    return asyncio.run(reader(api).read_job(status_of(recorded)))


@pytest.mark.parametrize(
    ("recorded", "plural"), [(None, "pytorchjobs"), ("JobSet", "jobsets"), ("TrainJob", "trainjobs")]
)
def test_a_job_of_the_recorded_kind_costs_one_read(recorded: str | None, plural: str) -> None:
    api = Api(*map(job, VERSIONS))
    assert found(api, recorded)["kind"] == (recorded or "PyTorchJob")
    assert api.read == [plural]


@pytest.mark.parametrize("recorded", [None, "JobSet", "TrainJob"])
@pytest.mark.parametrize("kind", VERSIONS)
def test_the_recipes_own_job_is_found_whatever_the_status_records(kind: str, recorded: str | None) -> None:
    """The operator may have died between creating the job and writing the status."""
    assert found(Api(job(kind)), recorded)["kind"] == kind


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_an_operator_reads_no_job_of_a_kind_that_it_does_not_handle(kind: str) -> None:
    api = Api(job(kind))
    assert asyncio.run(reader(api, "PyTorchJob").read_job(status_of(None))) is None
    assert api.read == ["pytorchjobs"]


@pytest.mark.parametrize(("kind", "option"), [("JobSet", "jobSets"), ("TrainJob", "trainJobs")])
def test_a_run_with_a_job_of_a_kind_that_is_not_handled_is_not_judged(kind: str, option: str) -> None:
    """It would take the job for lost. The job is not read either: there may be no right to."""
    api, status = Api(job(kind)), status_of(kind)
    without = reader(api, "PyTorchJob")
    with pytest.raises(JobKindDisabledError, match=f"the run has a {kind}.* set `{option}` of the chart"):
        asyncio.run(without.read(status))
    assert without.from_cache(status) is None
    assert asyncio.run(without.read_job(status)) is None
    assert set(api.read) == {"pytorchjobs"}


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_a_job_of_somebody_else_does_not_concern_a_run_on_another_kind(kind: str) -> None:
    assert found(Api(job(kind, own=False))) is None


def test_the_jobset_that_trainer_made_is_not_taken_for_a_job_of_the_recipe() -> None:
    made = job("JobSet", own=False)
    owner = {"apiVersion": VERSIONS["TrainJob"], "kind": "TrainJob", "name": "run", "uid": "uid-of-TrainJob"}
    made["metadata"] |= {"labels": {LABEL_RECIPE: "run"}, "ownerReferences": [owner]}
    for recorded in (None, "JobSet", "TrainJob"):
        assert found(Api(made, job("TrainJob")), recorded)["kind"] == "TrainJob"


def test_the_own_job_counts_more_than_one_of_somebody_else() -> None:
    api = Api(job("PyTorchJob", own=False), job("JobSet"))
    assert found(api)["kind"] == "JobSet"


def test_without_an_own_job_that_of_somebody_else_is_reported() -> None:
    foreign = job("PyTorchJob", own=False)
    assert found(Api(foreign)) == foreign


def runtime() -> dict[str, Any]:
    template = {"metadata": {}, "spec": {"containers": []}}
    groups = [{"name": "master", "template": {"spec": {"template": template}}}]
    metadata = {"name": "run", "namespace": "default"}
    spec = {"template": {"spec": {"replicatedJobs": groups}}}
    return {"apiVersion": VERSIONS["TrainJob"], "kind": "TrainingRuntime", "metadata": metadata, "spec": spec}


def test_a_trainjob_is_read_with_the_pod_templates_of_its_runtime() -> None:
    snapshot = asyncio.run(reader(Api(job("TrainJob"), runtime())).read(status_of("TrainJob")))
    assert trainjob.templates(snapshot.existing_job)[0]["spec"] == {"containers": []}


def test_a_trainjob_without_its_runtime_is_reported_with_what_to_do() -> None:
    with pytest.raises(TemplatesMissingError) as raised:
        asyncio.run(reader(Api(job("TrainJob"))).read(status_of("TrainJob")))
    assert str(raised.value) == (
        "trainingruntimes/run, which TrainJob run takes its pods from, does not exist; delete the TrainJob, "
        "and both are created again"
    )


def test_a_run_that_has_ended_needs_no_runtime() -> None:
    status = status_of("TrainJob", phase="Succeeded")
    snapshot = asyncio.run(reader(Api(job("TrainJob"))).read(status))
    assert snapshot.existing_job["kind"] == "TrainJob"


def pod(*, on_jobset: bool) -> dict[str, Any]:
    label = "jobset.sigs.k8s.io/jobset-name" if on_jobset else "training.kubeflow.org/job-name"
    owner = {"kind": "Job", "name": "run-worker-0", "uid": "b"} if on_jobset else {"kind": "PyTorchJob"}
    metadata = {"name": "pod", "namespace": "default", "uid": "p", "labels": {label: "run"}}
    return {"metadata": metadata | {"ownerReferences": [owner]}}


def test_a_pod_of_a_jobset_is_deleted_after_its_job_which_waits_for_the_pod() -> None:
    api: Any = Api()
    api.jobs[BATCH_JOBS] = {"metadata": {"uid": "b"}}
    pods = (pod(on_jobset=True),)
    asyncio.run(execute(api, [DeletePods(pods), ForceDeletePods(pods), ReplacePods(pods)]))
    with_job = (BATCH_JOBS, "run-worker-0", None, True)
    assert api.deleted == [
        with_job, (PODS, "pod", 10, False), with_job, (PODS, "pod", 0, False), with_job,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "existing", [None, {"metadata": {"uid": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}}]
)
def test_a_job_that_is_gone_or_deleted_already_is_not_deleted_again(existing: dict[str, Any] | None) -> None:
    api: Any = Api()
    api.jobs[BATCH_JOBS] = existing
    pods = (pod(on_jobset=True),)
    asyncio.run(execute(api, [DeletePods(pods), ForceDeletePods(pods), ReplacePods(pods)]))
    assert api.deleted == [(PODS, "pod", 10, False), (PODS, "pod", 0, False)]


def test_a_pod_of_a_pytorchjob_is_deleted_alone() -> None:
    api: Any = Api()
    pods = (pod(on_jobset=False),)
    asyncio.run(execute(api, [DeletePods(pods), ForceDeletePods(pods)]))
    assert api.deleted == [(PODS, "pod", 10, False), (PODS, "pod", 0, False)]

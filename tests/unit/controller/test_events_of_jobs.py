"""The Events of a job are read only where its pods do not become more."""

from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.controller.api_client import EVENTS, JOBS, Resource
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import pytorchjob
from megatron_operator.manifests.metadata import ROLE_TRAINER

from tests.unit.controller.silent_readers import Silent

SIZE = 3
REPLICAS = {"Master": {"replicas": 1}, "Worker": {"replicas": SIZE - 1}}
OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}
JOB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {
        "name": "run",
        "namespace": "default",
        "uid": "j",
        "labels": {LABEL_RECIPE: "run"},
        "ownerReferences": [OWNER],
    },
    "spec": {"nprocPerNode": "1", "pytorchReplicaSpecs": REPLICAS},
}
REFUSED = {
    "reason": "FailedCreatePod",
    "message": "exceeded quota",
    "type": "Warning",
    "involvedObject": {"kind": "PyTorchJob", "name": "run", "namespace": "default", "uid": "j"},
}


class Api:
    """A job with `pods` pods, whose further ones are refused."""

    def __init__(self) -> None:
        self.pods = 0
        self.lists_of_events = 0

    async def get(self, resource: Resource, *_: str) -> Any:
        return JOB if resource is JOBS else None

    async def find(self, resource: Resource, *_: Any, **__: Any) -> list[Any]:
        if resource is EVENTS:
            self.lists_of_events += 1
            return [REFUSED]
        return [pod(number) for number in range(self.pods)]


def pod(number: int) -> dict[str, Any]:
    labels = {
        LABEL_RECIPE: "run",
        LABEL_ROLE: ROLE_TRAINER,
        "training.kubeflow.org/replica-type": "worker" if number else "master",
        "training.kubeflow.org/replica-index": str(max(0, number - 1)),
        "training.kubeflow.org/job-name": "run",
    }
    owner = {"kind": "PyTorchJob", "name": "run", "uid": "j", "controller": True}
    name = f"run-worker-{number - 1}" if number else "run-master-0"
    metadata = {"name": name, "uid": name, "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "status": {}}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def reader(api: Api) -> SnapshotReader:
    used: Any = api
    unused: Any = Silent()
    return SnapshotReader(used, unused, unused, Caches((pytorchjob.KIND,)))


def status() -> StatusBuilder:
    metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}
    recorded = {"job": {"name": "run", "uid": "j", "hash": "h"}}
    return StatusBuilder.of({"metadata": metadata, "spec": {}, "status": recorded}, 0.0)


async def test_while_pods_are_created_no_events_are_listed(api: Api, reader: SnapshotReader) -> None:
    reader.job_created(status().key)
    for api.pods in range(1, SIZE + 1):
        assert (await reader.read(status())).events == ()
    await reader.read(status())
    assert api.lists_of_events == 0


async def test_where_no_pod_has_been_added_events_show_why(api: Api, reader: SnapshotReader) -> None:
    reader.job_created(status().key)
    api.pods = SIZE - 1
    assert (await reader.read(status())).events == ()
    assert (await reader.read(status())).events == (REFUSED,)


async def test_after_a_restart_of_the_operator_events_show_why_at_once(reader: SnapshotReader) -> None:
    assert (await reader.read(status())).events == (REFUSED,)


async def test_of_a_run_without_pods_events_show_why(api: Api, reader: SnapshotReader) -> None:
    reader.job_created(status().key)
    assert (await reader.read(status())).events == (REFUSED,)
    api.pods = 1
    assert (await reader.read(status())).events == ()


async def test_a_forgotten_run_is_judged_as_after_a_restart(api: Api, reader: SnapshotReader) -> None:
    await reader.read(status())
    reader.forget(status().key)
    api.pods = 1
    assert (await reader.read(status())).events == (REFUSED,)

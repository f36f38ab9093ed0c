"""The Events of jobs are read only where pods do not become more, and by all runs together."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.controller import job_events
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import EVENTS, JOBS, Resource
from megatron_operator.controller.job_events import JobEvents
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import pytorchjob
from megatron_operator.manifests.metadata import ROLE_TRAINER

from tests.unit.controller.silent_readers import Silent

SIZE = 3
REPLICAS = {"Master": {"replicas": 1}, "Worker": {"replicas": SIZE - 1}}
OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}
OTHER_NAMESPACE = "team-b"
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


async def test_without_events_the_run_is_read_all_the_same(
    api: Api, reader: SnapshotReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = api.find

    async def refusing(resource: Resource, *args: Any, **options: Any) -> list[Any]:
        if resource is EVENTS:
            raise ApiError(504, "Timeout", "the list took longer than 60 s")
        return await find(resource, *args, **options)

    monkeypatch.setattr(api, "find", refusing)
    api.pods = 1
    snapshot = await reader.read(status())
    assert (len(snapshot.pods), snapshot.events) == (1, ())
    assert "default: cannot list the Events of jobs: 504 Timeout" in caplog.text


def job(name: str, namespace: str = "default") -> dict[str, Any]:
    return JOB | {"metadata": JOB["metadata"] | {"name": name, "namespace": namespace, "uid": f"uid-{name}"}}


def warning(name: str) -> dict[str, Any]:
    return REFUSED | {"involvedObject": {"kind": "PyTorchJob", "name": name, "uid": f"uid-{name}"}}


class SlowEvents:
    """An API server that answers lists of Events when it is allowed to."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = list(events)
        self.asked: list[tuple[str, str]] = []
        self.go = asyncio.Event()

    async def find(self, _resource: Resource, namespace: str, *, fields: str) -> list[Any]:
        self.asked.append((namespace, fields))
        await self.go.wait()
        return list(self.events)


async def test_runs_that_wait_share_a_list_of_events_and_each_sees_its_own() -> None:
    api: Any = SlowEvents(*(warning(f"run-{number}") for number in range(50)))
    events = JobEvents(api)
    reads = [asyncio.create_task(events.of(job(f"run-{number}"))) for number in range(60)]
    await asyncio.sleep(0)
    api.go.set()
    found = await asyncio.gather(*reads)
    assert len(api.asked) == 1
    assert [[each["involvedObject"]["name"] for each in one] for one in found] == [
        *([f"run-{number}"] for number in range(50)),
        *([] for _ in range(10)),
    ]


async def test_a_list_is_used_for_a_while_after_it_was_complete() -> None:
    api: Any = SlowEvents(warning("run"))
    events = JobEvents(api)
    api.go.set()
    for _ in range(2):
        assert await events.of(job("run")) == (warning("run"),)
    assert len(api.asked) == 1


async def test_a_list_is_dropped_after_that_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "RECENT", 0.0)
    api: Any = SlowEvents(warning("run"))
    events = JobEvents(api)
    api.go.set()
    await events.of(job("run"))
    while events._lists:
        await asyncio.sleep(0)
    assert await events.of(job("run")) == (warning("run"),)
    assert len(api.asked) == 2


async def test_namespaces_have_lists_of_their_own() -> None:
    api: Any = SlowEvents(warning("run"))
    events = JobEvents(api)
    api.go.set()
    await events.of(job("run"))
    await events.of(job("run", OTHER_NAMESPACE))
    assert [namespace for namespace, _ in api.asked] == ["default", OTHER_NAMESPACE]


async def test_a_list_that_fails_fails_for_all_that_wait_and_is_read_again_by_the_next_run() -> None:
    class Failing(SlowEvents):
        async def find(self, resource: Resource, namespace: str, *, fields: str) -> list[Any]:
            found = await super().find(resource, namespace, fields=fields)
            if len(self.asked) == 1:
                raise ConnectionResetError
            return found

    api: Any = Failing(warning("run"))
    events = JobEvents(api)
    reads = [asyncio.create_task(events.of(job(name))) for name in ("run", "other", "third")]
    await asyncio.sleep(0)
    api.go.set()
    failed = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(each) for each in failed] == [ConnectionResetError] * 3
    assert len(api.asked) == 1
    assert await events.of(job("run")) == (warning("run"),)


async def test_a_reconcile_that_is_cancelled_does_not_end_the_list_of_others() -> None:
    api: Any = SlowEvents(warning("run"))
    events = JobEvents(api)
    first, second = (asyncio.create_task(events.of(job("run"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    api.go.set()
    assert await second == (warning("run"),)
    assert len(api.asked) == 1

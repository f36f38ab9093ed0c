"""A pod that its Job creates while that is being deleted replaces nothing: the next Job's pod does."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.controller.api_resources import (
    BATCH_JOBS,
    PODS,
    TRAINING_JOBS,
    TRAINING_RUNTIMES,
    Resource,
)
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.lifecycle.job_status import adopt_job
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.recovery import unfinished_actions
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status

from tests.unit.conftest import NOW
from tests.unit.controller.silent_readers import Silent

OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}
TEMPLATE: Object = {"spec": {"containers": [{"name": "pytorch", "image": "trainer:1", "env": []}]}}
GROUPS = [
    {"name": name, "replicas": 1, "template": {"spec": {"template": TEMPLATE}}}
    for name in ("master", "worker")
]
RUNTIME: Object = {
    "kind": "TrainingRuntime",
    "spec": {"template": {"spec": {"replicatedJobs": GROUPS}}},
}
WORDS = '{"message": "rank 3 was killed"}'


class Cluster:
    """A run of two pods on a JobSet, the recipe's own or Trainer's, and its operator."""

    def __init__(self, kind: str) -> None:
        self.now = NOW
        self.jobs_read = 0
        self.jobs: dict[str, Object] = {}
        """Metadata of the batch Jobs by UID."""
        self.pods: dict[str, Object] = {}
        """By UID."""
        self.job = _training_job(kind)
        self.status: Object = {}
        self.restart_operator()
        for place in ("master", "worker"):
            self.create_job(place, f"{place}-1")
            self.create_pod(place, f"{place}-1", f"{place}-a")

    def restart_operator(self) -> None:
        """It forgets what is not in the status."""
        api: Any = self
        unused: Any = Silent()
        self.reader = SnapshotReader(api, unused, unused, Caches(("PyTorchJob", self.job["kind"])))

    def create_job(self, place: str, uid: str) -> None:
        self.jobs[uid] = {"name": f"run-{place}-0", "uid": uid}

    def create_pod(self, place: str, job: str, uid: str) -> None:
        """Create a pod 30 s after what happened before."""
        self.now += 30
        self.pods[uid] = {
            "metadata": {
                "name": f"run-{place}-0-0-{uid}",
                "namespace": "default",
                "uid": uid,
                "creationTimestamp": timestamp(self.now),
                "ownerReferences": [{"kind": "Job", "name": f"run-{place}-0", "uid": job}],
                "labels": {
                    "jobset.sigs.k8s.io/jobset-name": "run",
                    "jobset.sigs.k8s.io/jobset-uid": "j",
                    "jobset.sigs.k8s.io/replicatedjob-name": place,
                    "jobset.sigs.k8s.io/job-index": "0",
                },
            },
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", "startTime": timestamp(self.now)},
        }

    def end(self, uid: str, code: int, message: str = "") -> None:
        ended = {"exitCode": code, "message": message, "finishedAt": timestamp(self.now)}
        state = {"name": "pytorch", "state": {"terminated": ended}}
        self.pods[uid]["status"] = {"phase": "Failed", "containerStatuses": [state]}

    def delete_job(self, uid: str) -> None:
        """As with foreground deletion: it stays until its pods are gone."""
        self.jobs[uid]["deletionTimestamp"] = timestamp(self.now)

    def remove(self, uid: str) -> None:
        """The Job is gone, and with it its pods."""
        del self.jobs[uid]
        owned = [each for each, pod in self.pods.items() if _job_of(pod) == uid]
        for each in owned:
            del self.pods[each]

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("default", "run")
        objects = {TRAINING_JOBS[self.job["kind"]]: self.job, TRAINING_RUNTIMES: RUNTIME}
        return objects.get(resource)

    async def find(self, resource: Resource, namespace: str, **_: Any) -> list[Any]:
        assert namespace == "default"
        return list(self.pods.values()) if resource is PODS else []

    async def metadata(self, resource: Resource, namespace: str, *, labels: str) -> list[Any]:
        assert (resource, namespace, labels) == (BATCH_JOBS, "default", "jobset.sigs.k8s.io/jobset-name=run")
        self.jobs_read += 1
        return list(self.jobs.values())

    def reconcile(self) -> RecoveryStatus:
        """Write the status of the run as it is; pods that have failed are about to be deleted."""
        metadata = {
            "name": "run",
            "namespace": "default",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "1",
        }
        status = StatusBuilder.of({"metadata": metadata, "spec": {}, "status": self.status}, self.now)
        snapshot = asyncio.run(self.reader.read(status))
        adopt_job(status, snapshot.existing_job)
        update_status(status, snapshot)
        unfinished_actions(status, snapshot)
        self.status = status.wire()
        return status.recovery


def _training_job(kind: str) -> Object:
    metadata = {
        "name": "run",
        "namespace": "default",
        "uid": "j",
        "creationTimestamp": timestamp(NOW),
        "labels": {LABEL_RECIPE: "run"},
        "ownerReferences": [OWNER],
    }
    on_jobset: Object = {"replicatedJobs": GROUPS}
    on_trainer: Object = {"trainer": {"numNodes": 2, "numProcPerNode": 2}}
    version, spec = {
        "JobSet": ("jobset.x-k8s.io/v1alpha2", on_jobset),
        "TrainJob": ("trainer.kubeflow.org/v1alpha1", on_trainer),
    }[kind]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _job_of(pod: Object) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


@pytest.fixture(params=["JobSet", "TrainJob"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One with a run whose gang is complete and counted."""
    cluster = Cluster(request.param)
    assert cluster.reconcile().pods_as_of == timestamp(cluster.now)
    return cluster


def fail_and_replace(cluster: Cluster) -> None:
    """The worker fails, and its Job replaces it while, or after, the operator deletes that Job."""
    cluster.end("worker-a", 138, WORDS)
    cluster.reconcile()
    cluster.delete_job("worker-1")
    cluster.create_pod("worker", "worker-1", "worker-b")


def test_a_pod_that_goes_with_its_job_replaces_none(cluster: Cluster) -> None:
    fail_and_replace(cluster)
    assert cluster.reconcile().restarts == 0
    assert set(cluster.reconcile().ended_pods) == {"worker-0"}, "the failed pod is not replaced yet"
    cluster.end("worker-b", 143)
    assert cluster.reconcile().restarts == 0
    cluster.remove("worker-1")
    assert cluster.reconcile().restarts == 0
    cluster.create_job("worker", "worker-2")
    cluster.create_pod("worker", "worker-2", "worker-c")
    recovery = cluster.reconcile()
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 1)
    assert recovery.last_cause == "worker-0: rank 3 was killed (exit code 138)"
    assert cluster.reconcile().restarts == 1


def test_the_next_operator_does_not_count_it_either(cluster: Cluster) -> None:
    fail_and_replace(cluster)
    cluster.restart_operator()
    assert cluster.reconcile().restarts == 0
    cluster.remove("worker-1")
    cluster.create_job("worker", "worker-2")
    cluster.create_pod("worker", "worker-2", "worker-c")
    recovery = cluster.reconcile()
    assert recovery.restarts == 1
    assert recovery.last_cause == "worker-0: rank 3 was killed (exit code 138)"


def test_a_pod_whose_job_is_gone_replaces_none(cluster: Cluster) -> None:
    fail_and_replace(cluster)
    del cluster.jobs["worker-1"], cluster.pods["worker-a"]
    assert cluster.reconcile().restarts == 0


def test_a_pod_that_its_job_replaced_and_that_stays_counts_at_once(cluster: Cluster) -> None:
    cluster.end("worker-a", 138, WORDS)
    cluster.create_pod("worker", "worker-1", "worker-b")
    recovery = cluster.reconcile()
    assert recovery.restarts == 1
    assert recovery.last_cause == "worker-0: rank 3 was killed (exit code 138)"


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob"])
def test_a_gang_is_not_complete_while_a_pod_of_it_goes_with_its_job(kind: str) -> None:
    cluster = Cluster(kind)
    cluster.delete_job("worker-1")
    assert cluster.reconcile().pods_as_of is None
    cluster.remove("worker-1")
    cluster.create_job("worker", "worker-2")
    cluster.create_pod("worker", "worker-2", "worker-b")
    recovery = cluster.reconcile()
    assert (recovery.pods_as_of, recovery.restarts) == (timestamp(cluster.now), 0)


def test_the_jobs_of_a_gang_that_was_counted_are_not_read(cluster: Cluster) -> None:
    before = cluster.jobs_read
    cluster.reconcile()
    assert cluster.jobs_read == before == 1

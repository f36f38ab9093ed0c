"""Kueue's queues for one test, and what Kueue has decided about its runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.api_server import Api, Object
from testkit.kueue_objects import API_VERSION, GPU, cluster_queue, cluster_wide, is_active, local_queue
from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.run_backend import CHOSEN
from tests.control_plane.world import World

QUEUE = "research"
"""Name of the LocalQueue of each test."""
POD_GPUS = 2
"""Simulated GPUs of a pod."""
LABEL_JOB = "kueue.x-k8s.io/job-uid"


def in_queue(**scheduling: Any) -> dict[str, Any]:
    """The section of a recipe that puts its run into the test's queue."""
    return {"scheduling": {"queue": QUEUE} | scheduling}


def is_suspended(state: RunState) -> bool:
    """Whether a run's job is suspended."""
    value: Any = state.job and state.job["spec"]
    for name in CHOSEN.suspend_path():
        value = (value or {}).get(name)
    return bool(value)


@contextmanager
def priority_class(api: Api, name: str) -> Iterator[str]:
    """A PriorityClass that preempts runs without one. Yields its name."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    api.create(kind | {"metadata": {"name": name}, "value": 1000})
    yield name
    api.delete("PriorityClass", None, name)


class Priorities:
    """WorkloadPriorityClasses of one test."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._made: list[str] = []

    def name(self, level: str) -> str:
        """Name of the class of a level, whether it exists or not."""
        return f"{level}-{self.namespace}"

    def create(self, level: str, value: int) -> str:
        """Create the class of a level. Returns its name."""
        kind = {"apiVersion": API_VERSION, "kind": "WorkloadPriorityClass"}
        self.api.create(kind | {"metadata": {"name": self.name(level)}, "value": value})
        self._made.append(self.name(level))
        return self.name(level)

    def delete(self) -> None:
        """Delete the classes."""
        for name in self._made:
            self.api.delete("WorkloadPriorityClass", None, name)


@contextmanager
def queues_of(world: World) -> Iterator["Queues"]:
    """The queue of a test, which is deleted after the runs in it."""
    queues = Queues(world.api, world.namespace)
    yield queues
    for recipe in world.api.list("MegatronRecipe", world.namespace):
        world.api.delete("MegatronRecipe", world.namespace, recipe["metadata"]["name"])
    world.wait_for_only("Pod")
    queues.delete()


class Queues:
    """A LocalQueue of the test's namespace, with a ClusterQueue and a ResourceFlavor of its own."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._made: list[tuple[str, str]] = []

    def create(
        self, pods: int, *, levels: tuple[str, ...] = (), node_labels: dict[str, str] | None = None
    ) -> None:
        """Create the queue with a quota for so many pods of two simulated GPUs.

        Workloads of higher priority preempt. With `levels` its flavor has a Topology of these node labels.
        """
        flavor: Object = {"nodeLabels": node_labels} if node_labels else {}
        if levels:
            nodes = {"levels": [{"nodeLabel": each} for each in levels]}
            self._create(cluster_wide("Topology", self.namespace, nodes))
            flavor = {"nodeLabels": {}, "topologyName": self.namespace} | flavor
        self._create(cluster_wide("ResourceFlavor", self.namespace, flavor))
        quotas = {GPU: str(pods * POD_GPUS), "cpu": "1000", "memory": "8Ti"}
        self._create(cluster_queue(self.namespace, quotas))
        self.api.create(local_queue(QUEUE, self.namespace, self.namespace))
        wait_until("the queue to be active", lambda: is_active(self.api, QUEUE, self.namespace))

    def _create(self, body: Object) -> None:
        self.api.create(body)
        self._made.append((body["kind"], body["metadata"]["name"]))

    def workload(self, state: RunState) -> Object:
        """The Workload of the run's job. Raises AssertionError where there is none."""
        found = self.api.list("Workload", self.namespace, labelSelector=f"{LABEL_JOB}={state.job_uid}")
        assert len(found) == 1, f"the job {state.job_uid} has {len(found)} Workloads"
        return found[0]

    def conditions(self, state: RunState) -> dict[str, str]:
        """Reason by type of the true conditions of the Workload of the run's job."""
        conditions = (self.workload(state).get("status") or {}).get("conditions") or []
        return {each["type"]: each["reason"] for each in conditions if each["status"] == "True"}

    def resumed_by(self, state: RunState) -> str:
        """The field manager that set `suspend` of a run's job last, to false."""
        assert state.job is not None
        assert is_suspended(state) is False
        *parents, last = ("spec", *CHOSEN.suspend_path())
        managers = set()
        for each in state.job["metadata"]["managedFields"]:
            fields = each["fieldsV1"]
            for parent in parents:
                fields = fields.get(f"f:{parent}", {})
            if f"f:{last}" in fields:
                managers.add(each["manager"])
        [manager] = managers
        return str(manager)

    def delete(self) -> None:
        """Delete the cluster-wide objects, once Kueue lets go of them."""
        for kind, name in reversed(self._made):
            self.api.delete(kind, None, name)

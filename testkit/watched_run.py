"""Runs on the local cluster whose pods and volume the tests look into from the host."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.faults import Container, Process

from testkit.api_server import Api
from testkit.kubectl import Cluster
from testkit.training_run import Run, Status, Step

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-gpt.yaml"
SAVE_INTERVAL = 10
KEEP = 3
NODES = 2
RANKS_PER_NODE = 2
DATA_CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
DEADLINE = 180.0
"""Seconds for anything that needs pods to start, on a machine with other work."""


def eventually[T](what: str, look: Callable[[], T | None], seconds: float = DEADLINE) -> T:
    """The first thing that `look` finds. Raises TimeoutError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)
    return found


@dataclass(frozen=True)
class Before:
    """A run just before a fault."""

    reached: int
    """Last iteration done."""
    generation: int
    saved: list[int]
    """Iterations of its checkpoints, oldest first."""
    incidents: int
    """Number of the last one told."""

    def resumed_from(self, steps: list[Step]) -> int | None:
        """The checkpoint of the first start since; None while no step was done since."""
        anew = (step.iteration - 1 for step in steps if step.generation > self.generation)
        return next(anew, None)


def steps_of(text: str | bytes) -> list[Step]:
    """Whole lines of a progress.jsonl."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [Step(line["iteration"], line["lmLoss"], line["time"], line["generation"]) for line in lines]


class Watched(ABC):
    """Pods that train, one checkpoint folder: what faults are done to."""

    name: str
    cluster: Cluster
    api: Api
    """kubectl takes a tenth of a second of a processor; what is asked many times a second goes by this."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Its checkpoint folder on the host. Raises ClusterError while there is none."""

    @abstractmethod
    def ranks(self, node_rank: int) -> list[Process]:
        """The rank processes of a pod by local rank, fewer while they are being started.

        Raises ClusterError when the pod has no running container.
        """

    def steps(self) -> list[Step]:
        """Every step in the order it was done, whole lines only."""
        try:
            text = (self.folder / "progress.jsonl").read_text()
        except (FileNotFoundError, ClusterError):
            return []
        return steps_of(text[: text.rfind("\n") + 1])

    def saved(self) -> list[int]:
        """Iterations whose checkpoint was finished, oldest first: Megatron writes metadata.json last."""
        names = [path.parent.name for path in self.folder.glob("iter_*/metadata.json")]
        # One that was set aside is called iter_0000020.broken-1.
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def pod_name(self, node_rank: int) -> str:
        return f"{self.name}-master-0" if node_rank == 0 else f"{self.name}-worker-{node_rank - 1}"

    def pod(self, node_rank: int) -> dict[str, Any] | None:
        return self.api.find("Pod", self.cluster.namespace, self.pod_name(node_rank))

    def container(self, node_rank: int) -> Container:
        """Raises ClusterError when the pod has no running container."""
        pod = self.pod(node_rank) or {}
        for state in pod.get("status", {}).get("containerStatuses", []):
            if state["name"] == "pytorch" and "running" in state["state"]:
                return Container(state["containerID"])
        raise ClusterError(f"{self.pod_name(node_rank)} does not run")


class WatchedRun(Watched, Run):
    """The tiny GPT with steps as short as the machine allows, and a checkpoint every SAVE_INTERVAL."""

    def __init__(self, cluster: Cluster, name: str, iterations: int) -> None:
        super().__init__(cluster, EXAMPLE, name)
        spec = self.manifest["spec"]
        # Data parallel alone: a collective a step, where tensor parallel ranks would wait for each other's
        # turn on a small machine twenty times a step.
        spec["parallelism"] = {"tensorModelParallelSize": 1}
        spec["model"] = {"numLayers": 2}
        # One claim for the data of all runs: only the first one's preparation has something to do.
        spec["data"]["volume"] = {"claimName": DATA_CLAIM["metadata"]["name"]}
        spec["training"] |= {
            "trainIters": iterations,
            "globalBatchSize": 4,
            "microBatchSize": 1,
            "seqLength": 64,
            "evalIters": 0,
        }
        spec["checkpoint"] |= {"saveInterval": SAVE_INTERVAL, "keep": KEEP}
        # So many faults in one run would have every node avoided.
        spec["recovery"] = {"nodes": {"avoidAfter": 0}}
        self.api = Api(cluster.kubeconfig)
        self.nodes = NODES
        """Pods that it lies on now."""
        self.exact_through: int | None = None
        """Last generation before it was first laid out anew; None: it never was."""
        self._folder: Path | None = None

    def change(self, spec: Mapping[str, Any]) -> None:
        """Change what the recipe says; to be applied."""
        _merge(self.manifest["spec"], spec)

    def lie_on(self, nodes: int, exact_through: int) -> None:
        """It was or is being laid out on so many pods, after that generation."""
        self.nodes = nodes
        if self.exact_through is None:
            self.exact_through = exact_through

    # What it wrote down.

    @property
    def folder(self) -> Path:
        if self._folder is None:
            named = self.manifest["spec"]["checkpoint"]["volume"].get("claimName")
            name = named or f"{self.name}-checkpoints"
            claim = self.api.find("PersistentVolumeClaim", self.cluster.namespace, name)
            volume = (claim or {}).get("spec", {}).get("volumeName")
            if not volume:
                raise ClusterError(f"{self.name} has no checkpoint volume yet")
            described = self.api.get("PersistentVolume", None, volume)
            self._folder = Path(described["spec"]["hostPath"]["path"]) / self.name
        return self._folder

    # What runs.

    def ranks(self, node_rank: int) -> list[Process]:
        """Children of the warm parent, each leading a session."""
        container = self.container(node_rank)
        return [
            process
            for parent in container.children(container.first)
            for process in container.children(parent)
            if process.session == process.pid
        ]

    def strays(self) -> list[str]:
        """Processes in its pods that belong neither to a launcher nor to a living rank."""
        found = []
        for node_rank in range(self.nodes):
            container = self.container(node_rank)
            first = container.first
            parents = container.children(first)
            known = {first.pid, *(p.pid for p in parents)}
            sessions = {rank.pid for rank in self.ranks(node_rank)}
            found += [
                f"{self.pod_name(node_rank)}: process {process.pid} of session {process.session}"
                for process in container.processes()
                if process.pid not in known and process.session not in sessions and process.alive
            ]
        return found

    # What is told.

    def recovery(self) -> dict[str, Any]:
        """status.recovery; empty while there is none."""
        found: dict[str, Any] = (self._recipe() or {}).get("status", {}).get("recovery") or {}
        return found

    def incidents(self, after: int = 0) -> list[dict[str, Any]]:
        """Those of status.recovery.history with a higher number."""
        return [each for each in self.recovery().get("history", []) if each["number"] > after]

    def plan(self) -> dict[str, Any]:
        """status.plan; empty while there is none."""
        found: dict[str, Any] = (self._recipe() or {}).get("status", {}).get("plan") or {}
        return found

    def status(self) -> Status:
        return Status.of(self._recipe())

    def _recipe(self) -> dict[str, Any] | None:
        return self.api.find("MegatronRecipe", self.cluster.namespace, self.name)

    def trains(self) -> bool:
        """Whether the ranks of all pods are there and the status says that they train."""
        try:
            ready = all(len(self.ranks(node)) == RANKS_PER_NODE for node in range(self.nodes))
        except ClusterError:
            return False
        return ready and self.require_alive().phase == "Training"

    def require_alive(self) -> Status:
        """Raises AssertionError when the run has failed."""
        status = self.status()
        assert status.phase not in ("Failed", "Refused"), (
            f"{self.name} ended as {status.phase}: {status.message}"
        )
        return status

    def settled(self) -> Before:
        """Wait until it trains with all its ranks and has two checkpoints, the newest since the last start.

        Then the budget of restarts is whole, and a damaged checkpoint has one before it.
        """

        def ready() -> Before | None:
            self.require_alive()
            steps = self.steps()
            if not steps or not self.trains():
                return None
            generation = steps[-1].generation
            first = next(step.iteration for step in steps if step.generation == generation)
            saved = self.saved()
            if len(saved) < 2 or saved[-1] < first or steps[-1].iteration < saved[-1] + 2:
                return None
            number = max((incident["number"] for incident in self.incidents()), default=0)
            return Before(steps[-1].iteration, generation, saved, number)

        return eventually(f"{self.name} to train on past a checkpoint", ready)


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value

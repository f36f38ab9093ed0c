"""Runs on the local cluster whose processes and checkpoint volume are inspected from the host."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.faults import Container, Process
from megatron_contract.environment import SAMPLES_DIR
from megatron_trainer.data.sample_history import SampleHistory

from testkit.api_server import Api
from testkit.errors import RunEndedError
from testkit.installation import DATA_CLAIM
from testkit.kubectl import ROOT, Kubectl
from testkit.training_run import IterationRecord, RunStatus, TrainingRun, parse_progress_log
from testkit.waiting import wait_until

EXAMPLE = ROOT / "examples" / "tiny-gpt.yaml"
SAVE_INTERVAL = 10
"""Iterations between checkpoints."""
BETWEEN_SAVES = range(2, SAVE_INTERVAL - 2)
"""Iterations after a complete checkpoint at which a fault is injected."""
KEEP = 3
"""Number of checkpoints that are kept."""
NODES = 2
RANKS_PER_NODE = 2


@dataclass(frozen=True)
class StateBeforeFault:
    """What a run had reached just before a fault."""

    reached: int
    """Last iteration done."""
    generation: int
    saved: list[int]
    """Iterations of its checkpoints, oldest first."""
    incidents: int
    """Number of the newest incident in status.recovery.history."""

    def resumed_from(self, records: list[IterationRecord]) -> int | None:
        """Iteration of the checkpoint that the first start since then loaded; None without a new record."""
        return next((each.iteration - 1 for each in records if each.generation > self.generation), None)


class FaultTarget(ABC):
    """Training pods that share one checkpoint folder, into which faults are injected."""

    name: str
    kubectl: Kubectl
    api: Api
    """For frequent reads: each kubectl call costs a tenth of a second of CPU."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Its checkpoint folder on the host. Raises ClusterError while there is none."""

    @abstractmethod
    def ranks(self, node_rank: int) -> list[Process]:
        """The rank processes of a pod by local rank; incomplete while they are being started.

        Raises ClusterError when the pod has no running container.
        """

    def records(self) -> list[IterationRecord]:
        """The iterations in the order they were done; a line that is being written is left out."""
        try:
            text = (self.folder / "progress.jsonl").read_text()
        except (FileNotFoundError, ClusterError):
            return []
        return parse_progress_log(text[: text.rfind("\n") + 1])

    def saved(self) -> list[int]:
        """Iterations of complete checkpoints, oldest first. Megatron writes metadata.json last."""
        names = [path.parent.name for path in self.folder.glob("iter_*/metadata.json")]
        # A checkpoint that was set aside is named iter_0000020.broken-1.
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def place(self, node_rank: int) -> str:
        """The place of a pod in the gang, as the status names it: node rank 0 is the Master."""
        return "master-0" if node_rank == 0 else f"worker-{node_rank - 1}"

    def pod_name(self, node_rank: int) -> str:
        """The training-operator's name of a pod, which its replacement has too."""
        return f"{self.name}-{self.place(node_rank)}"

    def pod(self, node_rank: int) -> dict[str, Any] | None:
        """The pod object, or None where there is none."""
        return self.api.find("Pod", self.kubectl.namespace, self.pod_name(node_rank))

    def container(self, node_rank: int) -> Container:
        """The trainer container. Raises ClusterError when the pod has no running container."""
        pod = self.pod(node_rank) or {}
        for state in pod.get("status", {}).get("containerStatuses", []):
            if state["name"] == "pytorch" and "running" in state["state"]:
                return Container(state["containerID"])
        raise ClusterError(f"{self.place(node_rank)} of {self.name} is not running")


def ranks_in(container: Container) -> list[Process]:
    """The ranks of a trainer's container: children of the fork server that lead a session."""
    return [
        process
        for parent in container.children(container.first)
        for process in container.children(parent)
        if process.session == process.pid
    ]


class WatchedRun(FaultTarget, TrainingRun):
    """A run of two pods with a checkpoint every SAVE_INTERVAL iterations: the tiny GPT, or another model."""

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        iterations: int,
        backend: str = "pytorchjob",
        file: Path | None = None,
    ) -> None:
        """A run of `iterations` iterations; apply() creates it.

        `backend` is the platform's. `file` holds its recipe; None: EXAMPLE with the shortest possible
        iterations.
        """
        super().__init__(kubectl, file or EXAMPLE, name, backend)
        spec = self.manifest["spec"]
        if file is None:
            _shorten_iterations(spec)
        spec["training"]["trainIters"] = iterations
        spec["checkpoint"] |= {"saveInterval": SAVE_INTERVAL, "keep": KEEP}
        # So many faults in one run would make the operator avoid every node.
        spec["recovery"] = {"nodes": {"avoidAfter": 0}}
        self.api = Api(kubectl.kubeconfig)
        self.nodes = NODES
        """Pods of its current layout."""
        self.exact_through: int | None = None
        """Last generation before its first change of layout; None where its layout never changed."""
        self._folder: Path | None = None

    def change(self, spec: Mapping[str, Any]) -> None:
        """Merge `spec` into the recipe; takes effect with apply()."""
        _merge(self.manifest["spec"], spec)

    def set_layout(self, nodes: int, exact_through: int) -> None:
        """Note that the run moves to `nodes` pods after generation `exact_through`."""
        self.nodes = nodes
        if self.exact_through is None:
            self.exact_through = exact_through

    # Pods, which have random names with all kinds of job but PyTorchJob.

    def pod_name(self, node_rank: int) -> str:
        """Name of the pod at a place. Raises ClusterError where there is none."""
        pod = self.pod(node_rank)
        if pod is None:
            raise ClusterError(f"{self.name} has no pod {self.place(node_rank)}")
        return str(pod["metadata"]["name"])

    def pod(self, node_rank: int) -> dict[str, Any] | None:
        """The pod at a place; the newest one while another one is being deleted there."""
        pods = self.api.list("Pod", self.kubectl.namespace, labelSelector=self.pod_selector)
        there = [pod for pod in pods if self.backend.node_rank(pod) == node_rank]
        return max(there, key=_age, default=None)

    def places(self) -> list[str]:
        """The place of each of its pods, sorted."""
        return sorted(self.place(self.backend.node_rank(pod)) for pod in self.pods())

    # Files and processes on the host.

    @property
    def folder(self) -> Path:
        if self._folder is None:
            named = self.manifest["spec"]["checkpoint"]["volume"].get("claimName")
            name = named or f"{self.name}-checkpoints"
            claim = self.api.find("PersistentVolumeClaim", self.kubectl.namespace, name)
            volume = (claim or {}).get("spec", {}).get("volumeName")
            if not volume:
                raise ClusterError(f"{self.name} has no checkpoint volume yet")
            described = self.api.get("PersistentVolume", None, volume)
            self._folder = Path(described["spec"]["hostPath"]["path"]) / self.name
        return self._folder

    def samples(self) -> SampleHistory:
        """What its ranks have recorded of the samples that they read. Raises ClusterError and OSError."""
        return SampleHistory(self.folder / SAMPLES_DIR)

    def ranks(self, node_rank: int) -> list[Process]:
        return ranks_in(self.container(node_rank))

    def stray_processes(self) -> list[str]:
        """Processes in its pods that belong neither to a launcher nor to a live rank, described.

        Raises ClusterError when a pod has no running container.
        """
        found = []
        for node_rank in range(self.nodes):
            container = self.container(node_rank)
            first = container.first
            parents = container.children(first)
            known = {first.pid, *(p.pid for p in parents)}
            sessions = {rank.pid for rank in self.ranks(node_rank)}
            found += [
                f"{self.place(node_rank)}: process {process.pid} of session {process.session}"
                for process in container.processes()
                if process.pid not in known and process.session not in sessions and process.alive
            ]
        return found

    # Status of the recipe.

    def recovery(self) -> dict[str, Any]:
        """status.recovery; empty where there is none."""
        found: dict[str, Any] = (self._recipe() or {}).get("status", {}).get("recovery") or {}
        return found

    def incidents(self, after: int = 0) -> list[dict[str, Any]]:
        """Incidents of status.recovery.history with a number above `after`."""
        return [each for each in self.recovery().get("history", []) if each["number"] > after]

    def recovered_incidents(self, after: int) -> list[dict[str, Any]] | None:
        """Incidents with a number above `after` once there is one and all are recovered; else None."""
        found = self.incidents(after)
        return found if found and all(each.get("recoveredAt") for each in found) else None

    def plan(self) -> dict[str, Any]:
        """status.plan; empty where there is none."""
        found: dict[str, Any] = (self._recipe() or {}).get("status", {}).get("plan") or {}
        return found

    def status(self) -> RunStatus:
        """The main fields of the recipe's status."""
        return RunStatus.of(self._recipe())

    def _recipe(self) -> dict[str, Any] | None:
        return self.api.find("MegatronRecipe", self.kubectl.namespace, self.name)

    def is_training(self) -> bool:
        """Whether all ranks of all pods exist and the phase is Training. Raises RunEndedError."""
        try:
            ready = all(len(self.ranks(node)) == RANKS_PER_NODE for node in range(self.nodes))
        except ClusterError:
            return False
        return ready and self.require_alive().phase == "Training"

    def require_alive(self) -> RunStatus:
        """The status. Raises RunEndedError when the run has failed or was refused."""
        status = self.status()
        if status.phase in ("Failed", "Refused"):
            raise RunEndedError(f"{self.name} ended as {status.phase}: {status.message}")
        return status

    def settled(self) -> StateBeforeFault:
        """Wait until all ranks train and there are two checkpoints, the newer one made since the last start.

        Then the restart budget is full, and a damaged checkpoint has a predecessor. The next save is some
        iterations ahead: ranks that hang in a save are given half an hour. Raises TimeoutError or
        RunEndedError.
        """

        def ready() -> StateBeforeFault | None:
            self.require_alive()
            records = self.records()
            if not records or not self.is_training():
                return None
            generation = records[-1].generation
            first = next(each.iteration for each in records if each.generation == generation)
            saved = self.saved()
            if len(saved) < 2 or saved[-1] < first or records[-1].iteration - saved[-1] not in BETWEEN_SAVES:
                return None
            number = max((incident["number"] for incident in self.incidents()), default=0)
            return StateBeforeFault(records[-1].iteration, generation, saved, number)

        return wait_until(f"{self.name} to train past a checkpoint", ready)


def _shorten_iterations(spec: dict[str, Any]) -> None:
    """Make the iterations of EXAMPLE short, and let all runs share one data claim: the first prepares."""
    # Data parallel only: one collective per iteration. Tensor-parallel ranks on a small machine would
    # wait for their turn on a core twenty times per iteration.
    spec["parallelism"] = {"tensorModelParallelSize": 1}
    spec["model"] = {"numLayers": 2}
    spec["data"]["volume"] = {"claimName": DATA_CLAIM["metadata"]["name"]}
    spec["training"] |= {"globalBatchSize": 4, "microBatchSize": 1, "seqLength": 64, "evalIters": 0}


def _age(pod: dict[str, Any]) -> tuple[bool, str]:
    """Sorts pods of one place: those that are being deleted first, then by age."""
    metadata = pod["metadata"]
    return "deletionTimestamp" not in metadata, str(metadata["creationTimestamp"])


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value

"""The systems that bench.recovery compares, each with the same image, model, data and checkpoints.

`operator` is a MegatronRecipe. The others run the pod template of its PyTorchJob with `torchrun`, torch's own
elastic agent and its c10d rendezvous, in place of the launcher: as a PyTorchJob, or as bare pods.
"""

import copy
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.faults import Container, Process

from demo.kubectl import Cluster
from demo.run import Step
from tests.control_plane.api import Api
from tests.faults.watched import DATA_CLAIM, NODES, RANKS_PER_NODE, WatchedRun, eventually

SCRIPT = Path(__file__).parent / "plain_pretrain.py"
TIMEOUT_MINUTES = 2
"""`--distributed-timeout-minutes` of the baselines: nothing else ends their hangs. Megatron's own is 10."""
RETRIED = 138
"""What a failed torchrun is made to exit with: policy ExitCode gives the job up at 1, torchrun's own code."""
CLAIM = "checkpoints"
"""One volume for the checkpoints of all systems, a folder each."""


class System(ABC):
    """One way to run two pods of two ranks; started anew for every series of faults."""

    key: str
    """What it is called in bench.recovery_report."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.api = Api(cluster.kubeconfig)
        self.name = name

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Its checkpoint folder on the host."""

    @abstractmethod
    def start(self) -> None:
        """Begin, from its newest checkpoint where it has one."""

    @abstractmethod
    def stop(self) -> None:
        """Take everything away but the checkpoints."""

    def failed(self) -> str | None:
        """Why it has given up; None while it has not."""
        return None

    def steps(self) -> list[Step]:
        try:
            text = (self.folder / "progress.jsonl").read_text()
        except (FileNotFoundError, ClusterError):
            return []
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [Step(line["iteration"], line["lmLoss"], line["time"], line["generation"]) for line in lines]

    def saved(self) -> int:
        """Newest iteration whose checkpoint was finished."""
        names = [path.parent.name for path in self.folder.glob("iter_*/metadata.json")]
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)

    def pod_name(self, node_rank: int) -> str:
        return f"{self.name}-master-0" if node_rank == 0 else f"{self.name}-worker-{node_rank - 1}"

    def pod(self, node_rank: int) -> dict[str, Any] | None:
        return self.api.find("Pod", self.cluster.namespace, self.pod_name(node_rank))

    def bound(self) -> bool:
        """Whether all pods are there to stay and have a node."""
        pods = [self.pod(node) for node in range(NODES)]
        return all(p and p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"] for p in pods)

    def ranks(self, node_rank: int) -> list[Process]:
        """The rank processes of a pod: each leads a session, below the agent or the warm parent."""
        pod = self.pod(node_rank) or {}
        for state in pod.get("status", {}).get("containerStatuses", []):
            if "running" in state["state"]:
                container = Container(state["containerID"])
                first = container.first
                return [p for p in container.processes() if p.session == p.pid and p.pid != first.pid]
        return []

    def all_ranks(self) -> set[Process]:
        """Of all pods; those of a pod that cannot be looked into are left out."""
        found: set[Process] = set()
        for node in range(NODES):
            try:
                found |= set(self.ranks(node))
            except ClusterError:
                continue
        return found


class Operator(System):
    """This project."""

    key = "operator"

    def __init__(self, cluster: Cluster, name: str, iterations: int) -> None:
        super().__init__(cluster, name)
        self.run = WatchedRun(cluster, name, iterations)
        self.run.manifest["spec"]["checkpoint"]["volume"] = {"claimName": CLAIM}

    @property
    def folder(self) -> Path:
        return self.run.folder

    def start(self) -> None:
        self.cluster.apply(DATA_CLAIM)
        self.cluster.apply({**DATA_CLAIM, "metadata": {"name": CLAIM}})
        self.run.apply()

    def stop(self) -> None:
        self.run.delete()

    def failed(self) -> str | None:
        status = self.run.status()
        return status.message if status.phase in ("Failed", "Refused") else None

    def template(self) -> dict[str, Any]:
        """The pod template of its job."""

        def made() -> dict[str, Any] | None:
            return self.cluster.get("pytorchjob", self.name)

        job = eventually(f"the PyTorchJob of {self.name}", made)
        template: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        return template


class _Torchrun(System):
    """Common to all baselines: the operator's pod template with torchrun in it."""

    def __init__(self, cluster: Cluster, name: str, template: dict[str, Any], volume: Path) -> None:
        super().__init__(cluster, name)
        self._template = template
        self._volume = volume

    @property
    def folder(self) -> Path:
        return self._volume / self.name

    def pod_template(self) -> dict[str, Any]:
        made = copy.deepcopy(self._template)
        made["metadata"] = {"labels": {"app": self.name}}
        made["spec"].pop("affinity", None)
        container = made["spec"]["containers"][0]
        flags = list(container["args"])
        for flag in ("--save", "--load"):
            flags[flags.index(flag) + 1] = f"/checkpoints/{self.name}"
        flags[flags.index("--data-cache-path") + 1] = f"/checkpoints/{self.name}/data-cache"
        flags += ["--distributed-timeout-minutes", str(TIMEOUT_MINUTES)]
        words = [
            *("torchrun", f"--nnodes={NODES}", f"--nproc-per-node={RANKS_PER_NODE}", "--max-restarts=100"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.pod_name(0)}:29500", f"--rdzv-id={self.name}"),
            *("/plain/plain_pretrain.py", *flags),
        ]
        # The shell replaces itself by nothing: it stays PID 1 and maps the exit code.
        container["command"] = ["sh", "-c", f'"$@" || exit {RETRIED}', "sh"]
        container["args"] = words
        container["env"] = [*container["env"], {"name": "OMP_NUM_THREADS", "value": "1"}]
        container["volumeMounts"].append({"name": "plain", "mountPath": "/plain"})
        made["spec"]["volumes"].append({"name": "plain", "configMap": {"name": "plain-pretrain"}})
        # Anything but spread pods would make losing a node another fault than losing a pod.
        made["spec"]["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": self.name}},
            }
        ]
        return made

    def end_pods(self) -> None:
        """Delete the pods and wait until no container of theirs is left.

        Not by force: then the objects go at once, and containers that train on write into the folder of the
        next start.
        """
        self.cluster.kubectl("delete", "pod", "-l", f"app={self.name}", "--grace-period=1", "--timeout=180s")

    def apply_script(self) -> None:
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "plain-pretrain"},
                "data": {"plain_pretrain.py": SCRIPT.read_text()},
            }
        )

    def ranks(self, node_rank: int) -> list[Process]:
        return [process for process in super().ranks(node_rank) if "plain_pretrain" in process.command]


class PlainPyTorchJob(_Torchrun):
    """A PyTorchJob as its users write it: `torchrun` in each pod, restarts left to the training-operator."""

    policy: str

    def start(self) -> None:
        self.apply_script()
        replicas = {
            kind: {"replicas": 1, "restartPolicy": self.policy, "template": self.pod_template()}
            for kind in ("Master", "Worker")
        }
        self.cluster.apply(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": self.name},
                "spec": {"nprocPerNode": str(RANKS_PER_NODE), "pytorchReplicaSpecs": replicas},
            }
        )

    def stop(self) -> None:
        self.cluster.kubectl("delete", "pytorchjob", self.name, "--ignore-not-found", "--timeout=120s")
        self.end_pods()

    def failed(self) -> str | None:
        job = self.cluster.get("pytorchjob", self.name) or {}
        for condition in job.get("status", {}).get("conditions") or []:
            if condition["type"] == "Failed" and condition["status"] == "True":
                return "the job is Failed"
        return None


class OnFailure(PlainPyTorchJob):
    key = "onfailure"
    policy = "OnFailure"


class ByExitCode(PlainPyTorchJob):
    key = "exitcode"
    policy = "ExitCode"


class Torchrun(_Torchrun):
    """`torchrun --max-restarts` in two pods that nobody replaces."""

    key = "torchrun"

    def start(self) -> None:
        self.apply_script()
        for node in range(NODES):
            name = self.pod_name(node)
            made = self.pod_template()
            made["metadata"]["labels"]["pod"] = name
            self.cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": name},
                    "spec": {
                        "clusterIP": "None",
                        "selector": {"pod": name},
                        "publishNotReadyAddresses": True,
                    },
                }
            )
            self.cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, **made["metadata"]},
                    "spec": {**made["spec"], "restartPolicy": "Never"},
                }
            )

    def stop(self) -> None:
        self.end_pods()
        for node in range(NODES):
            self.cluster.kubectl("delete", "service", self.pod_name(node), "--ignore-not-found")

"""The systems that bench.recovery compares, each with the same image, model, data and checkpoints.

`operator` is a MegatronRecipe. The others run the pod template of its PyTorchJob with `torchrun`, torch's own
elastic agent and its c10d rendezvous, in place of the launcher: as a PyTorchJob, or as bare pods.
"""

import contextlib
import copy
import os
import re
import shutil
import signal
from abc import abstractmethod
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.faults import Process

from bench.recovery_report import FAULTS
from testkit.api_server import Api
from testkit.kubectl import Cluster, CommandFailed
from testkit.training_run import Step
from testkit.watched_run import DATA_CLAIM, NODES, RANKS_PER_NODE, Watched, WatchedRun, eventually, steps_of

SCRIPT = Path(__file__).parent / "plain_pretrain.py"
TIMEOUT_MINUTES = 1
"""`--distributed-timeout-minutes` of the baselines, the least that it takes: nothing else ends their hangs.
Megatron's own is 10."""
RETRIED = 138
"""What a failed torchrun is made to exit with: policy ExitCode gives the job up at 1, torchrun's own code."""
CLAIM = "checkpoints"
"""One volume for the checkpoints of all systems, a folder each."""
ONCE = (
    '"$@" & child=$!; trap "kill $child" TERM; wait $child; code=$?; '
    f"[ $code -gt 128 ] && {{ wait $child; code=$?; }}; [ $code = 0 ] || exit {RETRIED}"
)
"""PID 1 of a container: SIGTERM is passed on, else a deleted pod would train on for its grace period. A trap
ends the first `wait` with 128 and more."""
FOR_EVER = 'until "$@"; do :; done'


def volume_of(api: Api, namespace: str, claim: str) -> Path | None:
    """Where the host has the volume of a claim; None while it is not there."""
    volume = (api.find("PersistentVolumeClaim", namespace, claim) or {}).get("spec", {}).get("volumeName")
    if not volume:
        return None
    folder = Path(api.get("PersistentVolume", None, volume)["spec"]["hostPath"]["path"])
    return folder if folder.is_dir() else None


class System(Watched):
    """One way to run two pods of two ranks; started anew for every series of faults."""

    key: str
    """What it is called in bench.recovery_report."""
    faults: tuple[str, ...] = FAULTS
    """Those that it is measured with."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.api = Api(cluster.kubeconfig)
        self.name = name
        self._steps: list[Step] = []
        self._read_bytes = 0

    def steps(self) -> list[Step]:
        """As above. What was read before is not read again: these runs take thousands of steps."""
        try:
            with (self.folder / "progress.jsonl").open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read_bytes:
                    self._steps, self._read_bytes = [], 0
                file.seek(self._read_bytes)
                text = file.read()
        except (FileNotFoundError, ClusterError):
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._steps += steps_of(whole)
        return list(self._steps)

    @abstractmethod
    def start(self) -> None:
        """Begin, from its newest checkpoint where it has one."""

    @abstractmethod
    def stop(self) -> None:
        """Take everything away but the checkpoints."""

    def forget(self) -> None:
        """Take the checkpoints away of a system that is stopped."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._steps, self._read_bytes = [], 0

    def ended(self) -> str | None:
        """What it says of its end; None while it has not ended."""
        return None

    def worn(self) -> bool:
        """Whether the next fault would cost more for those before it."""
        return False

    def kill_rank(self) -> None:
        """SIGKILL of one."""
        self.ranks(1)[1].kill()

    def bound(self) -> bool:
        """Whether all pods are there to stay and have a node."""
        pods = [self.pod(node) for node in range(NODES)]
        return all(p and p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"] for p in pods)

    def all_ranks(self) -> set[Process]:
        """Of all pods; those of a pod that cannot be looked into are left out."""
        found: set[Process] = set()
        for node in range(NODES):
            with contextlib.suppress(ClusterError):
                found |= set(self.ranks(node))
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

    def ranks(self, node_rank: int) -> list[Process]:
        return self.run.ranks(node_rank)

    def start(self) -> None:
        self.cluster.apply(DATA_CLAIM)
        self.cluster.apply({**DATA_CLAIM, "metadata": {"name": CLAIM}})
        self.run.apply()

    def stop(self) -> None:
        self.cluster.kubectl("delete", "megatronrecipe", self.name, "--ignore-not-found", "--timeout=120s")
        # Without the grace period, in which its ranks would save once more.
        pods = f"training.kubeflow.org/job-name={self.name}"
        self.cluster.kubectl("delete", "pod", "-l", pods, "--grace-period=1", "--timeout=180s")

    def ended(self) -> str | None:
        status = self.run.status()
        ended = status.phase in ("Failed", "Refused", "Succeeded")
        return f"{status.phase}: {status.message}" if ended else None

    def template(self) -> dict[str, Any]:
        """The pod template of its job, which is made when the data is prepared."""

        def made() -> dict[str, Any] | None:
            return self.cluster.get("pytorchjob", self.name)

        job = eventually(f"the PyTorchJob of {self.name}", made)
        template: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        return template


class _Torchrun(System):
    """Common to all baselines: the operator's pod template with torchrun in it."""

    max_restarts: int
    shell = ONCE

    def __init__(
        self, cluster: Cluster, name: str, template: dict[str, Any], volume: Path, claim: str = CLAIM
    ) -> None:
        """`volume`: where the host has the volume of `claim`, to which the checkpoints go."""
        super().__init__(cluster, name)
        self._template = template
        self._volume = volume
        self._claim = claim

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
        # Megatron's default. With it, SIGTERM asks for a save: the dead rank's sibling, which torchrun stops
        # so, would wait for its lost peers until torchrun kills it after 30 s.
        flags.remove("--exit-signal-handler")
        flags += ["--distributed-timeout-minutes", str(TIMEOUT_MINUTES)]
        words = [
            *("torchrun", f"--nnodes={NODES}", f"--nproc-per-node={RANKS_PER_NODE}"),
            f"--max-restarts={self.max_restarts}",
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.pod_name(0)}:29500", f"--rdzv-id={self.name}"),
            *("/plain/plain_pretrain.py", *flags),
        ]
        container["command"] = ["sh", "-c", self.shell, "sh"]
        container["args"] = words
        container["env"] = [*container["env"], {"name": "OMP_NUM_THREADS", "value": "1"}]
        container["volumeMounts"].append({"name": "plain", "mountPath": "/plain"})
        for source in made["spec"]["volumes"]:
            claim = source.get("persistentVolumeClaim", {})
            if claim.get("claimName") == CLAIM:
                claim["claimName"] = self._claim
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
        """Each leads a session, as the container's first process does."""
        container = self.container(node_rank)
        found = [process for process in container.processes() if process != container.first]
        return [process for process in found if process.session == process.pid]


class PlainPyTorchJob(_Torchrun):
    """A PyTorchJob as its users write it: `torchrun` in each pod, restarts left to the training-operator."""

    max_restarts = 0
    """torchrun's own. With more, agents whose ranks were started anew at different times miss each other."""
    policy: str

    def start(self) -> None:
        self.apply_script()
        replicas = {
            kind: {"replicas": 1, "restartPolicy": self.policy, "template": self.pod_template()}
            for kind in ("Master", "Worker")
        }
        # Its webhook must answer: after a fault the training-operator may be on its way back.
        ready = ("rollout", "status", "deployment/training-operator", "--timeout=120s")
        self.cluster.kubectl("-n", "kubeflow", *ready)
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

    def ended(self) -> str | None:
        job = self.api.find("PyTorchJob", self.cluster.namespace, self.name) or {}
        for condition in job.get("status", {}).get("conditions") or []:
            if condition["type"] in ("Failed", "Succeeded") and condition["status"] == "True":
                return f"{condition['type']}: {condition.get('message', '')}"
        return None

    def described(self) -> str:
        """What its pods say of themselves, in a few words."""
        return "; ".join(self._described(node) for node in range(NODES))

    def last_error(self) -> str:
        """The last error in the logs of its pods that are still there; empty where none is."""
        for node in range(NODES):
            for which in ("--previous=false", "--previous"):
                with contextlib.suppress(CommandFailed):
                    log = self.cluster.kubectl("logs", self.pod_name(node), "--tail=400", which)
                    found = re.findall(r"^(?:\[rank\d+\]: )?(\w[\w.]*Error: .{1,160})", log, re.MULTILINE)
                    if found:
                        return str(found[-1]).replace("|", "/")
        return ""

    def _described(self, node_rank: int) -> str:
        name = self.pod_name(node_rank).removeprefix(f"{self.name}-")
        pod = self.pod(node_rank)
        if pod is None:
            return f"{name} is gone"
        if "deletionTimestamp" in pod["metadata"]:
            return f"{name} Terminating"
        words = f"{name} {pod['status'].get('phase', 'Pending')}"
        for state in pod["status"].get("containerStatuses", []):
            if "waiting" in state["state"]:
                words = f"{name} {state['state']['waiting'].get('reason', 'waiting')}"
            if state["restartCount"]:
                words += f", restarted {state['restartCount']} times"
        return words


class OnFailure(PlainPyTorchJob):
    key = "onfailure"
    policy = "OnFailure"

    def worn(self) -> bool:
        """The kubelet starts a container that failed before 10, 20, 40 s later, and later."""
        pods = [self.pod(node) or {} for node in range(NODES)]
        states = [s for pod in pods for s in pod.get("status", {}).get("containerStatuses", [])]
        return any(state["restartCount"] for state in states)


class ByExitCode(PlainPyTorchJob):
    key = "exitcode"
    policy = "ExitCode"


class Torchrun(_Torchrun):
    """`torchrun --max-restarts` in two pods that nobody replaces."""

    key = "torchrun"
    max_restarts = 100

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


class GangAnew(Torchrun):
    """A cold restart of torchrun at its best: when a rank is killed, all others and both torchruns are ended
    in the same moment, and both torchruns begin anew at once in pods that live on.

    No real script around torchrun could be as quick: nothing has to be noticed, and nothing is waited for.
    """

    key = "anew"
    faults = ("rank",)
    max_restarts = 0
    shell = FOR_EVER

    def kill_rank(self) -> None:
        containers = [self.container(node) for node in range(NODES)]
        ended = [process for each in containers for process in each.processes() if process != each.first]
        super().kill_rank()
        # The Master's torchrun first: it holds the store that the others would find still there.
        for process in ended:
            with contextlib.suppress(ClusterError):
                process.signal(signal.SIGKILL)

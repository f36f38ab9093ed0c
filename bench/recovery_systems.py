"""The systems that bench.recovery compares, each with the same image, model, data and checkpoints.

`operator` is a MegatronRecipe. The others run the pod template of its PyTorchJob with `torchrun`, torch's own
elastic agent with its c10d rendezvous, in place of the launcher: as a PyTorchJob or as bare pods.
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
from testkit.errors import CommandFailedError
from testkit.installation import DATA_CLAIM
from testkit.kubectl import Kubectl
from testkit.training_run import IterationRecord, parse_progress_log
from testkit.waiting import wait_until
from testkit.watched_run import NODES, RANKS_PER_NODE, FaultTarget, WatchedRun

SCRIPT = Path(__file__).parent / "plain_pretrain.py"
TIMEOUT_MINUTES = 1
"""`--distributed-timeout-minutes` of the baselines, its minimum: nothing else ends their hangs. Megatron's
default is 10."""
RETRIED = 138
"""Exit code that replaces torchrun's own 1, at which policy ExitCode fails the job."""
CLAIM = "checkpoints"
"""The volume for the checkpoints of all systems, with a folder for each."""
ONCE = (
    '"$@" & child=$!; trap "kill $child" TERM; wait $child; code=$?; '
    f"[ $code -gt 128 ] && {{ wait $child; code=$?; }}; [ $code = 0 ] || exit {RETRIED}"
)
"""PID 1 of a container. It forwards SIGTERM, so that a deleted pod does not train on for its grace period. A
trapped signal makes the first `wait` return a code above 128."""
LOOP = 'until "$@"; do :; done'


def volume_of(api: Api, namespace: str, claim: str) -> Path | None:
    """Folder of a claim's volume on the host; None while it does not exist."""
    volume = (api.find("PersistentVolumeClaim", namespace, claim) or {}).get("spec", {}).get("volumeName")
    if not volume:
        return None
    folder = Path(api.get("PersistentVolume", None, volume)["spec"]["hostPath"]["path"])
    return folder if folder.is_dir() else None


class System(FaultTarget):
    """One way to run two pods of two ranks each."""

    key: str
    """Its key in bench.recovery_report.SYSTEM_TITLES."""
    faults: tuple[str, ...] = FAULTS
    """The faults that it is measured with."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.api = Api(kubectl.kubeconfig)
        self.name = name
        self._records: list[IterationRecord] = []
        self._read_bytes = 0

    def records(self) -> list[IterationRecord]:
        """As FaultTarget.records(), reading only what was appended: these runs take thousands of
        iterations."""
        try:
            with (self.folder / "progress.jsonl").open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read_bytes:
                    self._records, self._read_bytes = [], 0
                file.seek(self._read_bytes)
                text = file.read()
        except (FileNotFoundError, ClusterError):
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._records += parse_progress_log(whole)
        return list(self._records)

    @abstractmethod
    def start(self) -> None:
        """Start, from the newest checkpoint where there is one."""

    @abstractmethod
    def stop(self) -> None:
        """Delete everything but the checkpoints."""

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints of a stopped system."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._records, self._read_bytes = [], 0

    def final_state(self) -> str | None:
        """Its final condition and message; None while it has not ended."""
        return None

    def needs_restart(self) -> bool:
        """Whether earlier faults would prolong the next recovery."""
        return False

    def kill_rank(self) -> None:
        """SIGKILL one rank of the worker pod."""
        self.ranks(1)[1].kill()

    def bound(self) -> bool:
        """Whether all pods exist, are bound to a node and are not being deleted."""
        pods = [self.pod(node) for node in range(NODES)]
        return all(p and p["spec"].get("nodeName") and "deletionTimestamp" not in p["metadata"] for p in pods)

    def all_ranks(self) -> set[Process]:
        """The ranks of all pods that have a running container."""
        found: set[Process] = set()
        for node in range(NODES):
            with contextlib.suppress(ClusterError):
                found |= set(self.ranks(node))
        return found


class Operator(System):
    """This project's operator."""

    key = "operator"

    def __init__(self, kubectl: Kubectl, name: str, iterations: int) -> None:
        super().__init__(kubectl, name)
        self.run = WatchedRun(kubectl, name, iterations)
        self.run.manifest["spec"]["checkpoint"]["volume"] = {"claimName": CLAIM}

    @property
    def folder(self) -> Path:
        return self.run.folder

    def ranks(self, node_rank: int) -> list[Process]:
        return self.run.ranks(node_rank)

    def start(self) -> None:
        self.kubectl.apply(DATA_CLAIM)
        self.kubectl.apply({**DATA_CLAIM, "metadata": {"name": CLAIM}})
        self.run.apply()

    def stop(self) -> None:
        self.kubectl.run("delete", "megatronrecipe", self.name, "--ignore-not-found", "--timeout=120s")
        # Without the grace period, in which its ranks would save again.
        pods = f"training.kubeflow.org/job-name={self.name}"
        self.kubectl.run("delete", "pod", "-l", pods, "--grace-period=1", "--timeout=180s")

    def final_state(self) -> str | None:
        status = self.run.status()
        ended = status.phase in ("Failed", "Refused", "Succeeded")
        return f"{status.phase}: {status.message}" if ended else None

    def template(self) -> dict[str, Any]:
        """The pod template of its job. Waits for the job, which is created once the data is prepared."""

        def find_job() -> dict[str, Any] | None:
            return self.kubectl.get("pytorchjob", self.name)

        job = wait_until(f"the PyTorchJob of {self.name}", find_job)
        template: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        return template


class _Torchrun(System):
    """Base of all baselines: the operator's pod template with torchrun as its command."""

    max_restarts: int
    shell = ONCE

    def __init__(
        self, kubectl: Kubectl, name: str, template: dict[str, Any], volume: Path, claim: str = CLAIM
    ) -> None:
        """`volume` is the folder on the host of the volume of `claim`, which holds the checkpoints."""
        super().__init__(kubectl, name)
        self._template = template
        self._volume = volume
        self._claim = claim

    @property
    def folder(self) -> Path:
        return self._volume / self.name

    def pod_template(self) -> dict[str, Any]:
        """The operator's pod template with torchrun instead of the launcher."""
        made = copy.deepcopy(self._template)
        made["metadata"] = {"labels": {"app": self.name}}
        made["spec"].pop("affinity", None)
        container = made["spec"]["containers"][0]
        flags = list(container["args"])
        for flag in ("--save", "--load"):
            flags[flags.index(flag) + 1] = f"/checkpoints/{self.name}"
        flags[flags.index("--data-cache-path") + 1] = f"/checkpoints/{self.name}/data-cache"
        # Without it, as is Megatron's default. With it, SIGTERM requests a save: the dead rank's sibling,
        # which torchrun stops with SIGTERM, would wait for its lost peers until torchrun kills it after 30 s.
        flags.remove("--exit-signal-handler")
        flags += ["--distributed-timeout-minutes", str(TIMEOUT_MINUTES)]
        command = [
            *("torchrun", f"--nnodes={NODES}", f"--nproc-per-node={RANKS_PER_NODE}"),
            f"--max-restarts={self.max_restarts}",
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.pod_name(0)}:29500", f"--rdzv-id={self.name}"),
            *("/plain/plain_pretrain.py", *flags),
        ]
        container["command"] = ["sh", "-c", self.shell, "sh"]
        container["args"] = command
        container["env"] = [*container["env"], {"name": "OMP_NUM_THREADS", "value": "1"}]
        container["volumeMounts"].append({"name": "plain", "mountPath": "/plain"})
        for source in made["spec"]["volumes"]:
            claim = source.get("persistentVolumeClaim", {})
            if claim.get("claimName") == CLAIM:
                claim["claimName"] = self._claim
        made["spec"]["volumes"].append({"name": "plain", "configMap": {"name": "plain-pretrain"}})
        # With both pods on one node, losing a node would be another fault than losing a pod.
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
        """Delete the pods and wait until their containers are gone.

        Not with --force: the objects would be gone at once, and containers that are still training would
        write to the folder of the next start.
        """
        self.kubectl.run("delete", "pod", "-l", f"app={self.name}", "--grace-period=1", "--timeout=180s")

    def apply_script(self) -> None:
        """Apply the ConfigMap with the training script."""
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "plain-pretrain"},
                "data": {"plain_pretrain.py": SCRIPT.read_text()},
            }
        )

    def ranks(self, node_rank: int) -> list[Process]:
        """The session leaders of the container other than PID 1."""
        container = self.container(node_rank)
        found = [process for process in container.processes() if process != container.first]
        return [process for process in found if process.session == process.pid]


class PlainPyTorchJob(_Torchrun):
    """A PyTorchJob as its users write it: `torchrun` in each pod, restarts left to the training-operator."""

    max_restarts = 0
    """torchrun's default. With more, agents that restarted their ranks at different times miss each other."""
    policy: str

    def start(self) -> None:
        self.apply_script()
        replicas = {
            kind: {"replicas": 1, "restartPolicy": self.policy, "template": self.pod_template()}
            for kind in ("Master", "Worker")
        }
        # Its webhook must answer: after a fault the training-operator may still be restarting.
        ready = ("rollout", "status", "deployment/training-operator", "--timeout=120s")
        self.kubectl.run("-n", "kubeflow", *ready)
        self.kubectl.apply(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": self.name},
                "spec": {"nprocPerNode": str(RANKS_PER_NODE), "pytorchReplicaSpecs": replicas},
            }
        )

    def stop(self) -> None:
        self.kubectl.run("delete", "pytorchjob", self.name, "--ignore-not-found", "--timeout=120s")
        self.end_pods()

    def final_state(self) -> str | None:
        job = self.api.find("PyTorchJob", self.kubectl.namespace, self.name) or {}
        for condition in job.get("status", {}).get("conditions") or []:
            if condition["type"] in ("Failed", "Succeeded") and condition["status"] == "True":
                return f"{condition['type']}: {condition.get('message', '')}"
        return None

    def describe_pods(self) -> str:
        """The phases and restart counts of its pods, in one line."""
        return "; ".join(self._describe_pod(node) for node in range(NODES))

    def last_error(self) -> str:
        """The last Python error in the logs of its existing pods; empty where there is none."""
        for node in range(NODES):
            for which in ("--previous=false", "--previous"):
                with contextlib.suppress(CommandFailedError):
                    log = self.kubectl.run("logs", self.pod_name(node), "--tail=400", which)
                    found = re.findall(r"^(?:\[rank\d+\]: )?(\w[\w.]*Error: .{1,160})", log, re.MULTILINE)
                    if found:
                        return str(found[-1]).replace("|", "/")
        return ""

    def _describe_pod(self, node_rank: int) -> str:
        name = self.pod_name(node_rank).removeprefix(f"{self.name}-")
        pod = self.pod(node_rank)
        if pod is None:
            return f"{name} is gone"
        if "deletionTimestamp" in pod["metadata"]:
            return f"{name} Terminating"
        text = f"{name} {pod['status'].get('phase', 'Pending')}"
        for state in pod["status"].get("containerStatuses", []):
            if "waiting" in state["state"]:
                text = f"{name} {state['state']['waiting'].get('reason', 'waiting')}"
            if state["restartCount"]:
                text += f", restarted {state['restartCount']} times"
        return text


class OnFailure(PlainPyTorchJob):
    """The kubelet restarts a failed container in its pod."""

    key = "onfailure"
    policy = "OnFailure"

    def needs_restart(self) -> bool:
        """The kubelet delays the next start of a container that failed before: 10, 20, 40 s and so on."""
        pods = [self.pod(node) or {} for node in range(NODES)]
        states = [s for pod in pods for s in pod.get("status", {}).get("containerStatuses", [])]
        return any(state["restartCount"] for state in states)


class ByExitCode(PlainPyTorchJob):
    """The training-operator replaces a failed pod whose exit code is retryable."""

    key = "exitcode"
    policy = "ExitCode"


class Torchrun(_Torchrun):
    """`torchrun --max-restarts` in two pods that no controller replaces."""

    key = "torchrun"
    max_restarts = 100

    def start(self) -> None:
        self.apply_script()
        for node in range(NODES):
            name = self.pod_name(node)
            made = self.pod_template()
            made["metadata"]["labels"]["pod"] = name
            self.kubectl.apply(
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
            self.kubectl.apply(
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
            self.kubectl.run("delete", "service", self.pod_name(node), "--ignore-not-found")


class ColdRestart(Torchrun):
    """The fastest possible cold restart of torchrun: together with the rank, all other ranks and both
    torchruns are killed, and both torchruns restart at once in the same pods.

    A real script around torchrun is slower: here nothing has to be detected, and nothing is waited for.
    """

    key = "cold"
    faults = ("rank",)
    max_restarts = 0
    shell = LOOP

    def kill_rank(self) -> None:
        containers = [self.container(node) for node in range(NODES)]
        ended = [process for each in containers for process in each.processes() if process != each.first]
        super().kill_rank()
        # The Master's torchrun first: it hosts the store, to which the others could otherwise reconnect.
        for process in ended:
            with contextlib.suppress(ClusterError):
                process.signal(signal.SIGKILL)

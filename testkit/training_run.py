"""One training run on a cluster: apply it, follow it, hurt it, read back what it did."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testkit.kubectl import Cluster, CommandFailed

ENDED = ("Succeeded", "Failed", "Refused")


@dataclass(frozen=True)
class Step:
    """One iteration as the trainer wrote it down. An iteration that was done again appears twice."""

    iteration: int
    loss: float
    """The language-model loss of this step, as Megatron reduces it, every digit kept."""
    time: float
    """Seconds since the epoch at the end of the step."""
    generation: int
    """Number of the gang's meeting at the rendezvous."""


@dataclass(frozen=True)
class Status:
    """What `kubectl get megatronrecipe` tells."""

    phase: str
    iteration: int | None
    train_iters: int | None
    loss: float | None
    tokens_per_second: float | None
    checkpoint: int | None
    restarts: int
    message: str

    @classmethod
    def of(cls, recipe: dict[str, Any] | None) -> "Status":
        status = (recipe or {}).get("status", {})
        progress = status.get("progress") or {}
        recovery = status.get("recovery") or {}
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        told = [
            conditions[kind]["message"]
            for kind, bad in (
                ("Failed", "True"),
                ("Planned", "False"),
                ("Prepared", "False"),
                ("Running", "False"),
            )
            if conditions.get(kind, {}).get("status") == bad
        ]
        return cls(
            phase=status.get("phase", "Pending"),
            iteration=progress.get("iteration"),
            train_iters=progress.get("trainIters"),
            loss=progress.get("lmLoss"),
            tokens_per_second=progress.get("tokensPerSecond"),
            checkpoint=(status.get("checkpoint") or {}).get("iteration"),
            restarts=recovery.get("restarts", 0),
            message=told[0] if told else "",
        )


class Run:
    """A MegatronRecipe on a cluster."""

    def __init__(self, cluster: Cluster, file: Path, name: str | None = None) -> None:
        """`file` holds one MegatronRecipe; `name` gives it another name."""
        self.cluster = cluster
        self.manifest: dict[str, Any] = yaml.safe_load(file.read_text())
        if name is not None:
            self.manifest["metadata"]["name"] = name
        self.name: str = self.manifest["metadata"]["name"]

    @property
    def train_iters(self) -> int:
        return int(self.manifest["spec"]["training"]["trainIters"])

    def apply(self) -> None:
        self.cluster.apply(self.manifest)

    def status(self) -> Status:
        return Status.of(self.cluster.get("megatronrecipe", self.name))

    def follow(self, seconds: float) -> Iterator[Status]:
        """The status about once a second until the run has ended.

        Raises TimeoutError when it has not ended after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            status = self.status()
            yield status
            if status.phase in ENDED:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.name} is still {status.phase} after {seconds:.0f} s: {status.message}"
                )
            time.sleep(1)

    def wait(self, reached: Callable[[Status], bool], seconds: float) -> Status:
        """The first status for which `reached` holds.

        Raises TimeoutError, or RuntimeError when the run ends before it.
        """
        status = self.status()
        for status in self.follow(seconds):
            if reached(status):
                return status
        raise RuntimeError(f"{self.name} ended as {status.phase} before that: {status.message}")

    def pods(self) -> list[dict[str, Any]]:
        return self.cluster.select("pods", f"training.kubeflow.org/job-name={self.name}")

    def kill_pod(self, pod: str) -> float:
        """Delete a pod by force. Returns the time, seconds since the epoch.

        The object is gone at once; the kubelet still gives the process a moment, in which it may save.
        """
        now = time.time()
        self.cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0", show=True)
        return now

    def history(self) -> list[Step]:
        """Every step of the run in the order it was done, read from the checkpoint volume by a pod.

        Raises CommandFailed when the volume cannot be read.
        """
        job = self.cluster.get("pytorchjob", self.name)
        if job is None:
            raise CommandFailed(f"there is no PyTorchJob {self.name}")
        pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        trainer = pod["containers"][0]
        save = trainer["args"][trainer["args"].index("--save") + 1]
        reader = f"{self.name}-history"
        mounts = [m for m in trainer["volumeMounts"] if save.startswith(m["mountPath"])]
        volumes = [v for v in pod["volumes"] if v["name"] in {m["name"] for m in mounts}]
        self.cluster.kubectl("delete", "pod", reader, "--ignore-not-found")
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": reader},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "securityContext": pod["securityContext"],
                    "imagePullSecrets": pod.get("imagePullSecrets", []),
                    "volumes": volumes,
                    "containers": [
                        {
                            "name": "cat",
                            "image": trainer["image"],
                            "command": ["cat", f"{save}/progress.jsonl"],
                            "volumeMounts": [{**m, "readOnly": True} for m in mounts],
                            "securityContext": trainer["securityContext"],
                        }
                    ],
                },
            }
        )
        self.cluster.kubectl(
            "wait", f"pod/{reader}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"
        )
        text = self.cluster.kubectl("logs", reader)
        self.cluster.kubectl("delete", "pod", reader, "--wait=false")
        lines = [json.loads(line) for line in text.splitlines()]
        return [Step(line["iteration"], line["lmLoss"], line["time"], line["generation"]) for line in lines]

    def delete(self) -> None:
        """Delete the recipe and wait until nothing of it is left but volumes that it keeps."""
        self.cluster.kubectl("delete", "megatronrecipe", self.name, "--ignore-not-found", "--timeout=120s")
        self.cluster.kubectl(
            "wait",
            "pod",
            "-l",
            f"training.kubeflow.org/job-name={self.name}",
            "--for=delete",
            "--timeout=120s",
        )

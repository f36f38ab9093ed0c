"""One training run on a cluster: apply it, follow it, kill a pod, read the iterations that it did."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from megatron_contract.environment import CHECKPOINT_DIR
from megatron_operator.manifests.job_backends import BACKENDS

from testkit.errors import CommandFailedError, RunEndedError
from testkit.kubectl import Kubectl
from testkit.waiting import load_factor

FINAL_PHASES = ("Succeeded", "Failed", "Refused")


@dataclass(frozen=True)
class IterationRecord:
    """One iteration as the trainer recorded it. An iteration that was repeated has several records."""

    iteration: int
    loss: float
    """The language-model loss as Megatron reduces it, with all digits."""
    time: float
    """End of the iteration, seconds since the epoch."""
    generation: int
    """Number of the rendezvous round in which it was done."""


def parse_progress_log(text: str | bytes) -> list[IterationRecord]:
    """The records of a progress.jsonl, in its order. Raises ValueError on a line that is no JSON."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [
        IterationRecord(line["iteration"], line["lmLoss"], line["time"], line["generation"]) for line in lines
    ]


@dataclass(frozen=True)
class RunStatus:
    """The main fields of a MegatronRecipe's status."""

    phase: str
    iteration: int | None
    train_iters: int | None
    loss: float | None
    tokens_per_second: float | None
    checkpoint: int | None
    """Iteration of the newest checkpoint."""
    restarts: int
    message: str
    """Of the first condition that reports a problem; empty where none does."""

    @classmethod
    def of(cls, recipe: dict[str, Any] | None) -> "RunStatus":
        """The status of a recipe; Pending where the recipe or its status does not exist yet."""
        status = (recipe or {}).get("status", {})
        progress = status.get("progress") or {}
        recovery = status.get("recovery") or {}
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        problems = [
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
            message=problems[0] if problems else "",
        )


class TrainingRun:
    """A MegatronRecipe on a cluster."""

    def __init__(
        self, kubectl: Kubectl, file: Path, name: str | None = None, backend: str = "pytorchjob"
    ) -> None:
        """`file` holds one MegatronRecipe; `name` replaces its name; `backend` is the platform's."""
        self.kubectl = kubectl
        self.backend = BACKENDS[backend]
        self.manifest: dict[str, Any] = yaml.safe_load(file.read_text())
        if name is not None:
            self.manifest["metadata"]["name"] = name
        self.name: str = self.manifest["metadata"]["name"]

    @property
    def train_iters(self) -> int:
        """Iterations of the whole run."""
        return int(self.manifest["spec"]["training"]["trainIters"])

    def apply(self) -> None:
        """Create or update the recipe. Raises CommandFailedError."""
        self.kubectl.apply(self.manifest)

    def status(self) -> RunStatus:
        """The status as it is now. Raises CommandFailedError."""
        return RunStatus.of(self.kubectl.get("megatronrecipe", self.name))

    def follow(self, seconds: float) -> Iterator[RunStatus]:
        """The status about once a second until the run has ended.

        Raises TimeoutError when it has not ended after `seconds`, stretched by the machine's load.
        """
        began = time.monotonic()
        while True:
            status = self.status()
            yield status
            if status.phase in FINAL_PHASES:
                return
            if time.monotonic() - began > seconds * load_factor():
                raise TimeoutError(
                    f"{self.name} is still {status.phase} after {time.monotonic() - began:.0f} s: "
                    f"{status.message}"
                )
            time.sleep(1)

    def wait(self, reached: Callable[[RunStatus], bool], seconds: float) -> RunStatus:
        """The first status for which `reached` holds.

        Raises TimeoutError, or RunEndedError when the run ends first.
        """
        status = self.status()
        for status in self.follow(seconds):
            if reached(status):
                return status
        raise RunEndedError(f"{self.name} ended as {status.phase}: {status.message}")

    @property
    def pod_selector(self) -> str:
        """Label selector of its trainer pods."""
        return f"{self.backend.LABEL_JOB_NAME}={self.name}"

    def pods(self) -> list[dict[str, Any]]:
        """Its trainer pods. Raises CommandFailedError."""
        return self.kubectl.select("pods", self.pod_selector)

    def kill_pod(self, pod: str) -> float:
        """Force-delete a pod. Returns the time, seconds since the epoch.

        The object is gone at once; the kubelet still grants the process a moment, in which it may save.
        """
        now = time.time()
        self.kubectl.run("delete", "pod", pod, "--force", "--grace-period=0", show=True)
        return now

    def history(self) -> list[IterationRecord]:
        """Every iteration in the order it was done, read by a pod from the checkpoint volume.

        Raises CommandFailedError when the volume cannot be read.
        """
        job = self.kubectl.get("pytorchjob", self.name)
        if job is None:
            raise CommandFailedError(f"PyTorchJob {self.name} does not exist")
        template = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        reader = self._reader_pod(template)
        name = reader["metadata"]["name"]
        self.kubectl.run("delete", "pod", name, "--ignore-not-found")
        self.kubectl.apply(reader)
        self.kubectl.run("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s")
        text = self.kubectl.run("logs", name)
        self.kubectl.run("delete", "pod", name, "--wait=false")
        return parse_progress_log(text)

    def _reader_pod(self, template: dict[str, Any]) -> dict[str, Any]:
        """A pod that prints progress.jsonl, with the trainer's image, mounts and security context."""
        trainer = template["containers"][0]
        save = f"{CHECKPOINT_DIR}/{self.name}"
        mounts = [m for m in trainer["volumeMounts"] if save.startswith(m["mountPath"])]
        volumes = [v for v in template["volumes"] if v["name"] in {m["name"] for m in mounts}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{self.name}-history"},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": template["securityContext"],
                "imagePullSecrets": template.get("imagePullSecrets", []),
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

    def delete(self) -> None:
        """Delete the recipe and wait until its pods are gone. Raises CommandFailedError."""
        self.kubectl.run("delete", "megatronrecipe", self.name, "--ignore-not-found", "--timeout=120s")
        self.kubectl.run("wait", "pod", "-l", self.pod_selector, "--for=delete", "--timeout=120s")

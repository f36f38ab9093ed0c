"""One test's namespace: recipes in it, what became of them, and what happens to their pods."""

from collections.abc import Callable
from typing import Any

from testkit.api_server import Api, Object
from tests.control_plane.eventually import eventually
from tests.control_plane.gateway import Gateway
from tests.control_plane.operator_process import OperatorProcess
from tests.control_plane.trainers import ProgressStandIn, end_container, running_pods


class World:
    """What a test acts on."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        operator: OperatorProcess,
        gateway: Gateway,
        trainers: ProgressStandIn,
    ) -> None:
        self.api = api
        self.namespace = namespace
        self.operator = operator
        self.gateway = gateway
        self.trainers = trainers

    def apply(self, name: str, **changes: Any) -> Object:
        """A recipe of two pods of two simulated GPUs, with the spec's sections changed."""
        spec: Object = {
            "recipe": "tiny-gpt",
            "accelerator": {"count": 4, "perNode": 2},
            "parallelism": {"tensorModelParallelSize": 2},
            "data": {"mockData": True},
        }
        return self.api.apply(
            {
                "apiVersion": "megatron.training/v1alpha1",
                "kind": "MegatronRecipe",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec | changes,
            }
        )

    def edit(self, name: str, **changes: Any) -> None:
        self.api.patch("MegatronRecipe", self.namespace, name, {"spec": changes})

    def status(self, name: str) -> Object:
        return dict(self.api.get("MegatronRecipe", self.namespace, name).get("status") or {})

    def condition(self, name: str, kind: str) -> Object:
        conditions = {c["type"]: c for c in self.status(name).get("conditions") or []}
        return dict(conditions.get(kind) or {})

    def _awaited(self, name: str, holds: Callable[[Object], bool], what: str, seconds: float) -> Object:
        def look() -> Object | None:
            status = self.status(name)
            return status if status and holds(status) else None

        return eventually(look, lambda: f"{name} {what}; its status: {self.brief(name)}", seconds) or {}

    def brief(self, name: str) -> str:
        """The telling part of the status."""
        status = self.status(name)
        conditions = [
            f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])
        ]
        parts = {part: status.get(part) for part in ("phase", "progress", "checkpoint", "recovery")}
        (parts["checkpoint"] or {}).pop("contract", None)
        return f"{parts} {conditions}"

    def await_phase(self, name: str, *phases: str, seconds: float = 40) -> Object:
        return self._awaited(name, lambda s: s.get("phase") in phases, f"is {' or '.join(phases)}", seconds)

    def await_reason(self, name: str, kind: str, reason: str, seconds: float = 40) -> Object:
        """The condition, once it gives this reason."""

        def holds(status: Object) -> bool:
            return any((c["type"], c["reason"]) == (kind, reason) for c in status.get("conditions", []))

        self._awaited(name, holds, f"says {kind} for {reason}", seconds)
        return self.condition(name, kind)

    def job(self, name: str) -> Object | None:
        return self.api.find("PyTorchJob", self.namespace, name)

    def await_pods(self, name: str, pods: int = 2) -> dict[str, Object]:
        """All pods of the recipe's job run."""
        names = {f"{name}-master-0", *(f"{name}-worker-{i}" for i in range(pods - 1))}
        return running_pods(self.api, self.namespace, names)

    def say(self, name: str, pods: int = 2, **report: Any) -> None:
        """All pods of the recipe answer so from now on."""
        for pod in [f"{name}-master-0", *(f"{name}-worker-{i}" for i in range(pods - 1))]:
            self.trainers.say(self.namespace, pod, **report)

    def train(self, name: str, iteration: int, checkpoint: int | None = None, **report: Any) -> Object:
        """Bring the run to this iteration, and see the operator notice."""
        self.await_pods(name)
        self.say(name, iteration=iteration, checkpointIteration=checkpoint, **report)

        def holds(status: Object) -> bool:
            progress = status.get("progress") or {}
            return status.get("phase") == "Training" and progress.get("iteration") == iteration

        return self._awaited(name, holds, f"trains at {iteration}", 40)

    def end(self, pod: str, code: int, message: str = "", reason: str = "Error") -> None:
        end_container(self.api, self.namespace, pod, code, message, reason)

    def node_ready(self, name: str) -> str | None:
        """The status of a node's Ready condition."""
        conditions = self.api.get("Node", None, name)["status"]["conditions"]
        return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), None)

    def arguments(self, name: str) -> list[str]:
        """What the recipe's job gives to Megatron."""
        job = self.api.get("PyTorchJob", self.namespace, name)
        template = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        return list(template["spec"]["containers"][0]["args"])

    def environment(self, name: str) -> dict[str, str]:
        job = self.api.get("PyTorchJob", self.namespace, name)
        template = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        return {e["name"]: e["value"] for e in template["spec"]["containers"][0]["env"]}

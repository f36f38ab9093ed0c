"""One test's namespace: its recipes, the states they reach, and what happens to their pods.

There is deliberately no method that reads a part of the status: see testkit.run_state.
"""

import time
from collections.abc import Mapping
from typing import Any

from megatron_operator.api.labels import STORED_API_VERSION
from megatron_operator.api.times import timestamp
from megatron_operator.manifests.job_backends import stable_name

from testkit.api_server import Api, Object
from testkit.fake_trainers import FakeProgressServer, terminate_container
from testkit.operator_process import OperatorProcess
from testkit.run_state import Expected, RunState, wait_for_run
from testkit.waiting import DEADLINE, wait_until
from tests.control_plane.gateway import Gateway
from tests.control_plane.run_backend import CHOSEN


class World:
    """What a test acts on. It names pods by their places, such as `run-worker-0`."""

    backend = CHOSEN
    """Of the runs."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        operator: OperatorProcess,
        gateway: Gateway,
        trainers: FakeProgressServer,
    ) -> None:
        self.api = api
        self.namespace = namespace
        self.operator = operator
        self.gateway = gateway
        self.trainers = trainers

    @property
    def job_kind(self) -> str:
        """Kind of the training jobs."""
        return self.backend.kind

    def apply(self, name: str, *, api_version: str = STORED_API_VERSION, **changes: Any) -> Object:
        """Apply a recipe of two pods with two simulated GPUs each; `changes` replace sections of its spec.

        No hang is detected unless `changes` ask for it: the iteration of a fake trainer stands still while a
        test waits for something else, on a busy machine for longer than a hang takes.
        """
        changes["recovery"] = {"hangTimeout": "off"} | changes.get("recovery", {})
        spec: Object = {
            "recipe": "tiny-gpt",
            "accelerator": {"count": 4, "perNode": 2},
            "parallelism": {"tensorModelParallelSize": 2},
            "data": {"mockData": True},
        }
        return self.api.apply(
            {
                "apiVersion": api_version,
                "kind": "MegatronRecipe",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec | changes,
            }
        )

    def edit(self, name: str, **changes: Any) -> None:
        """Merge `changes` into the recipe's spec."""
        self.api.patch("MegatronRecipe", self.namespace, name, {"spec": changes})

    def patch_status(self, name: str, **changes: Any) -> None:
        """Merge `changes` into the recipe's status."""
        self.api.patch("MegatronRecipe", self.namespace, name, {"status": changes}, "status")

    def wait_for(self, name: str, *, seconds: float = DEADLINE, **expected: Any) -> RunState:
        """The first state of a run in which everything that is expected holds at once.

        `expected` are the fields of testkit.run_state.Expected. Raises TimeoutError with the whole state.
        """
        return wait_for_run(self.api, self.namespace, name, Expected(**expected), seconds, self.job_kind)

    def report(self, name: str, pods: int = 2, **report: Any) -> None:
        """Set the progress report of all pods of a run."""
        for place in [f"{name}-master-0", *(f"{name}-worker-{i}" for i in range(pods - 1))]:
            self.trainers.set_report(self.namespace, place, **report)

    def train(
        self,
        name: str,
        iteration: int,
        checkpoint: int | None = None,
        *,
        pods: int = 2,
        recovery: Mapping[str, Any] | None = None,
        conditions: Mapping[str, str | None] | None = None,
        **report: Any,
    ) -> RunState:
        """Bring a run to an iteration once its pods run, and wait until the operator has noted it.

        The state that is returned also has these `conditions` and these fields of status.recovery.
        """
        self.wait_for(name, pods=pods)
        self.report(name, pods, iteration=iteration, checkpointIteration=checkpoint, **report)
        status: dict[str, Any] = {"progress": {"iteration": iteration}}
        if "trainIters" in report:
            status["progress"]["trainIters"] = report["trainIters"]
        if checkpoint is not None:
            status["checkpoint"] = {"iteration": checkpoint}
        if recovery is not None:
            status["recovery"] = recovery
        return self.wait_for(name, phase="Training", pods=pods, status=status, conditions=conditions or {})

    def pod_name(self, place: str) -> str:
        """The name of the pod at a place, once there is one."""
        return wait_until(f"a pod at {place}", lambda: self.backend.pod_at(self.api, self.namespace, place))

    def delete_pod(self, place: str) -> None:
        """Delete a pod without a grace period."""
        self.api.delete("Pod", self.namespace, self.pod_name(place), gracePeriodSeconds=0)

    def terminate(self, place: str, code: int, message: str = "", reason: str = "Error") -> None:
        """Let a pod's container exit now with `code` and a termination message.

        A batch Job measures its back-off from that time.
        """
        pod, now = self.pod_name(place), timestamp(time.time())
        terminate_container(self.api, self.namespace, pod, code, message, reason, now)

    def job_exists(self, name: str) -> bool:
        """Whether there is a training job of this name."""
        return self.api.find(self.job_kind, self.namespace, name) is not None

    def wait_for_events(self, *reasons: str, contains: str = "") -> list[Object]:
        """All Events of these reasons, once each reason has one with `contains` in its message."""

        def found() -> list[Object] | None:
            events = [e for e in self.api.list("Event", self.namespace) if e["reason"] in reasons]
            matching = {event["reason"] for event in events if contains in event["message"]}
            return events if matching == set(reasons) else None

        return wait_until(f"Events {', '.join(reasons)} {contains}", found)

    def places(self) -> set[str]:
        """Places of all pods in the namespace."""
        return {stable_name(pod) for pod in self.api.list("Pod", self.namespace)}

    def wait_for_only(self, kind: str, *names: str) -> None:
        """Wait until the objects of a kind in the namespace are exactly `names`."""

        def names_found() -> set[str]:
            return {item["metadata"]["name"] for item in self.api.list(kind, self.namespace)}

        wait_until(
            lambda: f"the {kind}s to be {sorted(names)}, found {sorted(names_found())}",
            lambda: names_found() == set(names),
        )

    def node_ready(self, name: str) -> str | None:
        """The status of a node's Ready condition."""
        conditions = self.api.get("Node", None, name)["status"]["conditions"]
        return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), None)

"""What the cluster holds of one recipe's run, read at one moment."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatron_operator.api.times import seconds
from megatron_operator.controller.node_reader import Node, node_of, overdue, unreachable_since
from megatron_operator.controller.progress_poller import Reading, Target
from megatron_operator.lifecycle import ForceDelete, PodEnd, PodPhase, PodView, abandoned, pod_end
from megatron_operator.lifecycle.pod_termination import left_early
from megatron_operator.manifests import pytorchjob


@dataclass(frozen=True, slots=True)
class Scene:
    """The training job, its pods, what they say and what is said about them."""

    job: dict[str, Any]
    pods: list[dict[str, Any]]
    """By node rank."""
    reading: Reading | None
    ends: dict[str, PodEnd] = field(default_factory=dict)
    """How pods that are gone ended, by name; a hint, for the operator may have been away."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Warnings about the job."""
    nodes: dict[str, Node] = field(default_factory=dict)
    """Where pods are being deleted; none where nodes may not be read."""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def state(self) -> pytorchjob.JobState:
        return pytorchjob.state(self.job)

    @property
    def size(self) -> int:
        """Pods that the gang should have."""
        replicas = self.job["spec"]["pytorchReplicaSpecs"].values()
        return sum(int(replica.get("replicas", 1)) for replica in replicas)

    @property
    def per_node(self) -> int:
        """Accelerators of one pod."""
        return int(self.job["spec"]["nprocPerNode"])

    @property
    def staying(self) -> list[dict[str, Any]]:
        """Pods that are not being deleted."""
        return [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]

    def views(self, now: float = 0.0) -> tuple[PodView, ...]:
        """`now` matters to pods that are being deleted alone."""
        return tuple(pod_view(pod, self.nodes.get(node_of(pod) or ""), now) for pod in self.pods)

    def named(self, names: Collection[str]) -> list[dict[str, Any]]:
        return [pod for pod in self.pods if pod["metadata"]["name"] in names]

    def unplaced(self) -> list[dict[str, Any]]:
        """Pods that no node has been found for, as the scheduler says."""
        return [
            pod for pod in self.staying if node_of(pod) is None and _scheduled(pod).get("status") == "False"
        ]

    def bound_at(self) -> float | None:
        """When the last pod of the whole gang got its node, seconds since the epoch."""
        known = [since for pod in self.staying if (since := bound_since(pod)) is not None]
        return max(known) if len(known) == self.size else None

    def all_run(self) -> bool:
        views = self.views()
        return len(views) == self.size and all(
            view.phase is PodPhase.RUNNING and not view.deleting for view in views
        )

    def finishing(self) -> bool:
        """Whether some pods have ended well and the others still run."""
        phases = {view.phase for view in self.views()}
        done = PodPhase.SUCCEEDED in phases and phases <= {PodPhase.SUCCEEDED, PodPhase.RUNNING}
        return done and len(self.pods) == self.size and not any(map(left_early, self.pods))

    def left_early(self) -> str | None:
        """Why a job that calls itself Succeeded is not done: how its Master left; None where it is done.

        A Master that is gone cannot be asked; then the job's word counts.
        """
        master = next((pod for pod in self.pods if pytorchjob.node_rank(pod) == 0), None)
        if self.state.phase is not pytorchjob.JobPhase.SUCCEEDED or master is None or not left_early(master):
            return None
        end = pod_end(master, self.name)
        return None if end is None else end.cause

    def together(self) -> float:
        """When the youngest of the running pods began."""
        return max((view.started or 0.0 for view in self.views()), default=0.0)

    def heard(self) -> bool:
        """Whether what was heard is of these pods, not of those before them."""
        return self.reading is not None and self.reading.answered >= self.together()

    def targets(self) -> tuple[Target, ...]:
        """Pods that can be asked for their progress."""
        return tuple(
            Target(pod["metadata"]["name"], pod["status"]["podIP"], pytorchjob.node_rank(pod))
            for pod in self.staying
            if (pod.get("status") or {}).get("podIP") and pod["status"].get("phase") == "Running"
        )


def bound_since(pod: Mapping[str, Any]) -> float | None:
    """When a pod got its node, seconds since the epoch; None before."""
    return None if node_of(pod) is None else seconds(_scheduled(pod).get("lastTransitionTime"))


def _scheduled(pod: Mapping[str, Any]) -> dict[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c.get("type") == "PodScheduled"), {})


def given_up(pods: Iterable[dict[str, Any]], nodes: Mapping[str, Node], now: float) -> list[dict[str, Any]]:
    """Of pods that nobody needs any more, those that only a deletion by force ends.

    A silent kubelet counts no grace period, so nothing is gained by waiting for its end. Should the pod still
    run there, its launcher sees that it was replaced and writes nothing more.
    """
    ending = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
    views = tuple(pod_view(pod, nodes.get(node_of(pod) or ""), now) for pod in ending)
    decision = abandoned(views, now)
    if not isinstance(decision, ForceDelete):
        return []
    return [pod for pod in ending if pod["metadata"]["name"] in decision.pods]


def pod_view(pod: dict[str, Any], node: Node | None, now: float) -> PodView:
    """A pod as recovery sees it."""
    status = pod.get("status") or {}
    started = status.get("startTime")
    for state in status.get("containerStatuses") or []:
        running = (state.get("state") or {}).get("running") or {}
        started = running.get("startedAt") or started
    phase = status.get("phase")
    began = seconds(started)
    return PodView(
        node_rank=pytorchjob.node_rank(pod),
        phase=PodPhase(phase) if phase in set(PodPhase) else PodPhase.PENDING,
        # Times are told in whole seconds: what was heard within that one may be of the pod before.
        started=None if began is None else began + 1.0,
        deleting=bool(pod["metadata"].get("deletionTimestamp")),
        name=pod["metadata"]["name"],
        node=node_of(pod),
        overdue=overdue(pod, now),
        unreachable_since=unreachable_since(pod, node, now),
    )

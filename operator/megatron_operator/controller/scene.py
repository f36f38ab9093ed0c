"""What the cluster holds of one recipe's run, read at one moment."""

from dataclasses import dataclass, field
from typing import Any

from megatron_operator.controller.draft import seconds
from megatron_operator.controller.progress import Reading, Target
from megatron_operator.manifests import pytorchjob
from megatron_operator.recovery import PodPhase, PodView
from megatron_operator.recovery.cause import PodEnd


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
    def staying(self) -> list[dict[str, Any]]:
        """Pods that are not being deleted."""
        return [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]

    def views(self) -> tuple[PodView, ...]:
        return tuple(_view(pod) for pod in self.pods)

    def all_run(self) -> bool:
        views = self.views()
        return len(views) == self.size and all(
            view.phase is PodPhase.RUNNING and not view.deleting for view in views
        )

    def finishing(self) -> bool:
        """Whether some pods have ended well and the others still run."""
        phases = {view.phase for view in self.views()}
        done = PodPhase.SUCCEEDED in phases and phases <= {PodPhase.SUCCEEDED, PodPhase.RUNNING}
        return done and len(self.pods) == self.size

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


def _view(pod: dict[str, Any]) -> PodView:
    status = pod.get("status") or {}
    started = status.get("startTime")
    for state in status.get("containerStatuses") or []:
        running = (state.get("state") or {}).get("running") or {}
        started = running.get("startedAt") or started
    phase = status.get("phase")
    began = seconds(started)
    return PodView(
        pytorchjob.node_rank(pod),
        PodPhase(phase) if phase in set(PodPhase) else PodPhase.PENDING,
        # Times are told in whole seconds: what was heard within that one may be of the pod before.
        None if began is None else began + 1.0,
        bool(pod["metadata"].get("deletionTimestamp")),
    )

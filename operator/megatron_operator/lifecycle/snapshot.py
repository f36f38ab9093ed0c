"""What the cluster holds of one run at one moment, and the facts that follow from it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.node_state import NodeStatus, node_of, overdue, stuck, unreachable_since
from megatron_operator.lifecycle.object_metadata import Object, condition, is_deleting
from megatron_operator.lifecycle.observation import PodPhase, PodView
from megatron_operator.lifecycle.pod_termination import (
    PodEnd,
    ended_early,
    failed_for_replacement,
    pod_end,
)
from megatron_operator.lifecycle.progress_reading import ProgressReading, ProgressTarget, Silence
from megatron_operator.lifecycle.recovery_policy import ForceDelete, force_delete_or_wait
from megatron_operator.manifests import recovery_priority
from megatron_operator.manifests.image_pinning import by_digest, trainer_image
from megatron_operator.manifests.job_backend import LABEL_QUEUE, TOPOLOGY_GATE, JobBackend, JobPhase
from megatron_operator.manifests.job_backends import backend_of, node_rank
from megatron_operator.manifests.metadata import digest


@dataclass(frozen=True)
class RunSnapshot:
    """The training job, its pods, what the pods report and what Kubernetes reports about them.

    Everything is read once; the properties are computed once. Times are seconds since the epoch.
    """

    now: float
    job: Object | None
    pods: tuple[Object, ...] = ()
    """Pods of this job, by node rank."""
    leftover_pods: tuple[Object, ...] = ()
    """Trainer pods of the recipe that belong to an earlier job."""
    reading: ProgressReading | None = None
    silence: Silence | None = None
    """Set while the pods do not answer."""
    ends: Mapping[str, PodEnd] = field(default_factory=dict)
    """How pods that are gone ended, by name. Incomplete when the operator was not running."""
    events: tuple[Object, ...] = ()
    """Warnings about the job."""
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    """Nodes with pods that are being deleted, and suspects; empty where nodes may not be read."""
    announcing: Mapping[str, NodeStatus] | None = None
    """Of the run's nodes, and those recorded for maintenance, those that exist, as the watch of nodes
    delivered them; None: not known."""
    nodes_gone: frozenset[str] = frozenset()
    """Avoided nodes that no longer exist, as the watch of nodes delivered it; none while that is unknown."""
    held_back: str | None = None
    """Why Kueue does not admit the job, empty where it gives no reason; None: not read."""
    pods_of_deleted_jobs: frozenset[str] = frozenset()
    """UIDs of new pods whose batch Job is gone or being deleted, so that they are about to be deleted too."""
    left_early: str | None = None
    """Why the job was found not to be complete although it has succeeded, when its pods still showed it."""
    cached: bool = False
    """Whether job and pods are what the watches delivered, which may be out of date."""

    def with_job(self, job: Object) -> "RunSnapshot":
        """The same moment with the job that has just been created."""
        return replace(self, job=job)

    @property
    def existing_job(self) -> Object:
        """The job, where the caller knows that there is one."""
        assert self.job is not None, "the run has no job"
        return self.job

    @cached_property
    def backend(self) -> JobBackend:
        """The kind of the job."""
        return backend_of(self.existing_job)

    @cached_property
    def name(self) -> str:
        """Name of the job."""
        return str(self.existing_job["metadata"]["name"])

    @cached_property
    def job_uid(self) -> str:
        """UID of the job."""
        return str(self.existing_job["metadata"]["uid"])

    @cached_property
    def job_phase(self) -> JobPhase | None:
        """The job's phase; None without a job."""
        return None if self.job is None else self.backend.state(self.job).phase

    @cached_property
    def job_began(self) -> float:
        """When the job was created, or resumed after that; 0 where that is not known."""
        job = self.existing_job
        suspended = condition(job, "Suspended")
        resumed = suspended.get("lastTransitionTime") if suspended.get("status") == "False" else None
        return max(seconds(job["metadata"].get("creationTimestamp")) or 0.0, seconds(resumed) or 0.0)

    @cached_property
    def job_message(self) -> str | None:
        """The message of the job's last condition."""
        return self.backend.state(self.existing_job).message

    @cached_property
    def queue(self) -> str | None:
        """The Kueue queue that the job waits in."""
        labels = self.existing_job["metadata"].get("labels") or {}
        return labels.get(LABEL_QUEUE)

    @cached_property
    def size(self) -> int:
        """Number of pods in the gang."""
        return self.backend.size(self.existing_job)

    @cached_property
    def has_templates(self) -> bool:
        """Whether the job has its pod templates: those that another object has are not in the caches."""
        return self.backend.TEMPLATE_PLURAL is None or not self.cached

    @cached_property
    def moves_pods(self) -> bool:
        """Whether a pod can get another node while the job stays.

        Not where the job's templates cannot be changed, nor where Kueue has chosen the nodes of the gang: it
        assigns a replaced pod to the same node.
        """
        if not self.backend.PATCHES_TEMPLATES:
            return False
        templates = self.backend.templates(self.existing_job)
        gates = [gate for each in templates for gate in each["spec"].get("schedulingGates") or []]
        return all(gate["name"] != TOPOLOGY_GATE for gate in gates)

    @cached_property
    def longest_grace(self) -> float:
        """Seconds that the pods have to save a checkpoint and end: those of the one with the most."""
        graces = (float(pod["spec"].get("terminationGracePeriodSeconds") or 0.0) for pod in self.pods)
        return max(graces, default=0.0)

    @cached_property
    def per_node(self) -> int:
        """Accelerators of one pod."""
        return self.backend.per_node(self.existing_job)

    @cached_property
    def accelerators(self) -> int:
        """Accelerators of the whole job."""
        return self.size * self.per_node

    @cached_property
    def active_pods(self) -> tuple[Object, ...]:
        """Pods that are not being deleted, alone or with their Jobs."""
        return tuple(pod for pod in self.pods if not self._is_leaving(pod))

    @cached_property
    def placed_on(self) -> frozenset[str]:
        """Nodes of the active pods."""
        return frozenset(name for pod in self.active_pods if (name := node_of(pod)) is not None)

    @cached_property
    def pod_views(self) -> tuple[PodView, ...]:
        """The pods as the recovery policy sees them."""
        views = [(pod, pod_view(pod, self.nodes.get(node_of(pod) or ""), self.now)) for pod in self.pods]
        return tuple(replace(v, deleting=True) if self._is_leaving(pod) else v for pod, v in views)

    @cached_property
    def unscheduled_pods(self) -> tuple[Object, ...]:
        """Active pods for which the scheduler has found no node."""
        return tuple(
            pod
            for pod in self.active_pods
            if node_of(pod) is None and condition(pod, "PodScheduled").get("status") == "False"
        )

    @cached_property
    def all_bound_at(self) -> float | None:
        """When the last pod of the whole gang was bound to its node; None while one is not bound."""
        known = [since for pod in self.active_pods if (since := bound_since(pod)) is not None]
        return max(known) if len(known) == self.size else None

    @cached_property
    def all_running(self) -> bool:
        """Whether every pod of the gang is running and none is being deleted."""
        views = self.pod_views
        return len(views) == self.size and all(
            view.phase is PodPhase.RUNNING and not view.deleting for view in views
        )

    @cached_property
    def image_to_pin(self) -> str | None:
        """The image, by digest, that the whole gang runs and the job names by tag; None if there is none.

        None in a queue: Kueue suspends a job whose containers are not those that it has admitted.
        """
        if not self.backend.PATCHES_TEMPLATES or self.queue is not None:
            return None
        image = trainer_image(self.existing_job)
        if image is None or not self.all_running:
            return None
        digests = {by_digest(image, _image_id(pod)) for pod in self.pods}
        return digests.pop() if len(digests) == 1 else None

    @cached_property
    def priority_class_to_set(self) -> str | None:
        """The PriorityClass of pods that will replace others, once the gang has nodes; None to set none."""
        if not self.backend.PATCHES_TEMPLATES or self.queue is not None or self.all_bound_at is None:
            return None
        return recovery_priority.missing_class(self.existing_job)

    @cached_property
    def finishing(self) -> bool:
        """Whether some pods have completed and the others are still running."""
        phases = {view.phase for view in self.pod_views}
        done = PodPhase.SUCCEEDED in phases and phases <= {PodPhase.SUCCEEDED, PodPhase.RUNNING}
        return done and len(self.pods) == self.size and not any(map(ended_early, self.pods))

    @cached_property
    def early_exit(self) -> str | None:
        """Why a job in phase Succeeded is not complete: its Master exited early; None if it is complete.

        Without the Master's pod what was found before counts, then what is known of its end, and only then
        the phase of the job.
        """
        if self.job_phase is not JobPhase.SUCCEEDED:
            return None
        master = next((pod for pod in self.pods if node_rank(pod) == 0), None)
        if master is None and self.left_early is not None:
            return self.left_early
        if master is None:
            end = self.ends.get(f"{self.name}-master-0")
            return end.cause if end is not None and end.exit_code == 0 else None
        end = pod_end(master, self.name) if ended_early(master) else None
        return None if end is None else end.cause

    @cached_property
    def pods_to_replace(self) -> tuple[Object, ...]:
        """Pods that have ended and that the job's controller does not replace, or only after a back-off."""
        if self.job_phase is not JobPhase.ACTIVE:
            return ()
        # The Master's end completes the job. Its early exit is handled then, which its pod must show.
        early = tuple(pod for pod in self.active_pods if ended_early(pod) and node_rank(pod) != 0)
        if self.backend.REPLACES_PODS:
            return early
        failed = (pod for pod in self.active_pods if failed_for_replacement(pod))
        return (*failed, *early)

    @cached_property
    def stuck_pods(self) -> tuple[Object, ...]:
        """Pods that have ended and are not removed; nothing replaces them meanwhile."""
        return tuple(pod for pod in self.pods if stuck(pod, self.now))

    @cached_property
    def running_since(self) -> float:
        """When the youngest running pod started; 0 when none runs."""
        return max((view.started or 0.0 for view in self.pod_views), default=0.0)

    @cached_property
    def reading_is_current(self) -> bool:
        """Whether the progress was reported by these pods, not by pods that they replaced."""
        return self.reading is not None and self.reading.answered >= self.running_since

    @cached_property
    def gang_hash(self) -> str | None:
        """Hash of the pods of the whole gang; None while one is missing."""
        uids = sorted(pod["metadata"]["uid"] for pod in self.active_pods)
        return digest(uids) if len(uids) == self.size else None

    @cached_property
    def progress_targets(self) -> tuple[ProgressTarget, ...]:
        """Pods that serve /progress."""
        return tuple(
            ProgressTarget(pod["metadata"]["name"], pod["status"]["podIP"], node_rank(pod))
            for pod in self.active_pods
            if (pod.get("status") or {}).get("podIP") and pod["status"].get("phase") == "Running"
        )

    @cached_property
    def deleting_pods(self) -> tuple[Object, ...]:
        """Trainer pods of this or an earlier job that are being deleted."""
        return tuple(pod for pod in (*self.pods, *self.leftover_pods) if is_deleting(pod))

    @cached_property
    def abandoned_pods(self) -> tuple[Object, ...]:
        """Trainer pods of this or an earlier job that only a forced deletion ends."""
        return abandoned_pods(self.deleting_pods, self.nodes, self.now)

    def _is_leaving(self, pod: Object) -> bool:
        return is_deleting(pod) or pod["metadata"]["uid"] in self.pods_of_deleted_jobs

    def pods_named(self, names: Collection[str]) -> tuple[Object, ...]:
        """The pods with these names."""
        return tuple(pod for pod in self.pods if pod["metadata"]["name"] in names)


def _image_id(pod: Object) -> str:
    """The image that the trainer's container runs, as its node's container runtime names it."""
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return next((str(each.get("imageID") or "") for each in states if each["name"] == CONTAINER_NAME), "")


def bound_since(pod: Mapping[str, Any]) -> float | None:
    """When a pod was bound to its node, seconds since the epoch; None before."""
    return None if node_of(pod) is None else seconds(condition(pod, "PodScheduled").get("lastTransitionTime"))


def abandoned_pods(pods: Iterable[Object], nodes: Mapping[str, NodeStatus], now: float) -> tuple[Object, ...]:
    """Of pods that are no longer needed, those that only a forced deletion ends or removes.

    A kubelet that cannot be reached counts no grace period, so waiting for its end gains nothing. If the pod
    still runs there, its launcher detects that it was replaced and stops writing.
    """
    deleting = [pod for pod in pods if is_deleting(pod)]
    views = tuple(pod_view(pod, nodes.get(node_of(pod) or ""), now) for pod in deleting)
    decision = force_delete_or_wait(views, now)
    names = decision.pods if isinstance(decision, ForceDelete) else ()
    return tuple(pod for pod in deleting if pod["metadata"]["name"] in names or stuck(pod, now))


def pod_view(pod: Object, node: NodeStatus | None, now: float) -> PodView:
    """A pod as the recovery policy sees it. `now` is in seconds since the epoch."""
    status = pod.get("status") or {}
    started = status.get("startTime")
    for state in status.get("containerStatuses") or []:
        running = (state.get("state") or {}).get("running") or {}
        started = running.get("startedAt") or started
    phase = status.get("phase")
    began = seconds(started)
    return PodView(
        node_rank=node_rank(pod),
        phase=PodPhase(phase) if phase in set(PodPhase) else PodPhase.PENDING,
        # Kubernetes writes whole seconds: a report of the same second may come from the previous pod.
        started=None if began is None else began + 1.0,
        deleting=is_deleting(pod),
        name=pod["metadata"]["name"],
        node=node_of(pod),
        overdue=overdue(pod, now),
        unreachable_since=unreachable_since(pod, node, now),
    )

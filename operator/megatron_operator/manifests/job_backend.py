"""What the operator needs of a kind of training job. A backend is one module with these functions.

`job_backends` has them all. The kind of a job that exists is read from the object, so that a run keeps the
kind that it was started with.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from megatron_operator.api.status import Plan
from megatron_operator.manifests.metadata import Manifest, Owner

LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
"""Kueue's WorkloadPriorityClass. Without the label Kueue takes the priority from the pods' PriorityClass."""
JOB_WARNINGS = "involvedObject.kind=Job,reason=FailedCreate,type=Warning"
"""Field selector of the Events of batch Jobs that cannot create their pods."""
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Scheduling gate that Kueue adds to pod templates while it chooses the nodes of their pods."""


class JobPhase(StrEnum):
    """State of a job, from its conditions and `suspend`."""

    ACTIVE = "Active"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class JobState:
    """Phase of a job, and the message of its final condition."""

    phase: JobPhase
    message: str = ""


def state_by_conditions(job: dict[str, Any], complete: str, *, suspend: object) -> JobState:
    """State of a job by its condition `complete` or `Failed`; without one, by its field `suspend`."""
    conditions = {c["type"]: c for c in (job.get("status") or {}).get("conditions") or []}
    for kind, phase in ((complete, JobPhase.SUCCEEDED), ("Failed", JobPhase.FAILED)):
        if conditions.get(kind, {}).get("status") == "True":
            return JobState(phase, conditions[kind].get("message", ""))
    return JobState(JobPhase.SUSPENDED if suspend else JobPhase.ACTIVE)


class JobBackend(Protocol):
    """A kind of training job of one gang: the pod with node rank 0 is the Master."""

    @property
    def GROUP(self) -> str:
        """API group."""

    @property
    def VERSION(self) -> str:
        """API version."""

    @property
    def PLURAL(self) -> str:
        """Name of the resource."""

    @property
    def KIND(self) -> str:
        """Kind of the object."""

    @property
    def CONTROLLER(self) -> str:
        """The controller to install, as messages name it."""

    @property
    def LABEL_JOB_NAME(self) -> str:
        """Label of pods with the name of their job."""

    @property
    def PATCHES_TEMPLATES(self) -> bool:
        """Whether the pod templates of a job that exists can be changed."""

    @property
    def REPLACES_PODS(self) -> bool:
        """Whether the controller replaces pods that fail without being asked to."""

    @property
    def TEMPLATE_PLURAL(self) -> str | None:
        """Resource of the object of its name that has the pod templates; None if the job has them."""

    @property
    def EVENT_SELECTORS(self) -> tuple[str, ...]:
        """Field selectors of the warnings about pods that jobs of this kind cannot create."""

    def job(self, owner: Owner, plan: Plan, template: Manifest, queue: str | None) -> Manifest:
        """The job of a plan. With a Kueue queue it is created suspended; Kueue resumes it.

        Raises InvalidRecipeError if the job cannot have the recipe's name.
        """

    def objects(self, job: Manifest) -> list[Manifest]:
        """The objects that a manifest consists of, in the order of their creation: the job is the last."""

    def with_templates(self, job: Manifest, source: Manifest) -> Manifest:
        """The manifest of a job that exists, with the object of TEMPLATE_PLURAL that has its templates."""

    def templates(self, job: Manifest) -> list[Manifest]:
        """The pod templates of a job, that of the Master first."""

    def state(self, job: dict[str, Any]) -> JobState:
        """State of a job as the API server returns it. Succeeded and Failed are final."""

    def size(self, job: Manifest) -> int:
        """Number of pods in the gang."""

    def per_node(self, job: Manifest) -> int:
        """Accelerators of one pod."""

    def owns(self, job: dict[str, Any], pod: dict[str, Any]) -> bool:
        """Whether the pod is one of exactly this job, not of another one of its name."""

    def job_name(self, pod: dict[str, Any]) -> str | None:
        """Name of the job that a pod belongs to."""

    def node_rank(self, pod: dict[str, Any]) -> int:
        """Node rank of a pod in its gang."""

    def stable_name(self, pod: dict[str, Any]) -> str:
        """Name of a pod's place in the gang, which its replacement has too: `<job>-worker-3`."""

    def replaced_with(self, pod: dict[str, Any]) -> Manifest | None:
        """The batch Job to delete so that a pod is replaced; None where the end of the pod suffices."""

    def is_event_of(self, job: dict[str, Any], event: dict[str, Any]) -> bool:
        """Whether an Event found by one of EVENT_SELECTORS is about this job."""

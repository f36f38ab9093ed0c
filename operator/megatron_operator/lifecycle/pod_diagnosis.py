"""Why pods do not start, in the words of the component that reports it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.missing_objects import missing_object
from megatron_operator.lifecycle.object_metadata import condition, event_time
from megatron_operator.lifecycle.pod_termination import short_name
from megatron_operator.lifecycle.topology_domains import required_keys
from megatron_operator.manifests import gang_scheduling

IMAGE_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
WITHOUT_CAPACITY = frozenset({Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED, Reason.PODS_NOT_CREATED})
"""Reasons that end when capacity becomes free."""
NOT_CREATED: Final = (
    "FailedCreate",
    "HeadlessServiceCreationFailed",
    "JobCreationFailed",
    "TrainJobResourcesCreationFailed",
)
"""How reasons begin that Jobs, JobSets and TrainJobs report when the API server rejects what they create."""
_GATED: Final = (
    f"still has the scheduling gate {gang_scheduling.GATE}: the chart's MutatingAdmissionPolicy, which "
    "assigns pods to their PodGroup, is missing or without effect"
)
_UNBOUND: Final = "unbound immediate PersistentVolumeClaims"
"""Part of the scheduler's message, which names no claim."""
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first problem to fix."""

    reason: Reason
    message: str


def diagnose(
    pods: Sequence[dict[str, Any]], events: Iterable[dict[str, Any]], job_name: str
) -> Diagnosis | None:
    """The most informative problem: images first, then configuration, scheduling and pod creation.

    `events` are the warnings about the job; they matter where pods are missing.
    """
    waiting = [(pod, state) for pod in pods for state in _waiting(pod)]
    kinds = ((Reason.IMAGE_PULL_FAILED, IMAGE_REASONS), (Reason.POD_CONFIG_ERROR, CONFIG_REASONS))
    for reason, container_reasons in kinds:
        for pod, state in waiting:
            if state.get("reason") in container_reasons:
                detail = state.get("message") or state["reason"]
                if reason is Reason.POD_CONFIG_ERROR:
                    detail += missing_object(pod, detail)
                return Diagnosis(reason, f"{short_name(pod, job_name)}: {state['reason']}: {detail}")
    for pod in pods:
        if gang_scheduling.is_gated(pod):
            return Diagnosis(Reason.POD_GROUP_MISSING, f"{short_name(pod, job_name)} {_GATED}")
    unscheduled = [(pod, message) for pod in pods if (message := _unschedulable(pod))]
    if unscheduled:
        pod, message = unscheduled[0]
        count = "1 pod has" if len(unscheduled) == 1 else f"{len(unscheduled)} pods have"
        if _UNBOUND in message and (claims := _claims(pod)):
            read = f"kubectl describe pvc {' '.join(claims)}"
            text = f"{count} no node: claim {' or '.join(claims)} is not bound; {read} has the reason"
            return Diagnosis(Reason.VOLUME_CLAIM_UNBOUND, text)
        shared = "".join(f"; all pods must share {key}" for key in required_keys(pod.get("spec") or {}))
        return Diagnosis(
            Reason.UNSCHEDULABLE, f"{count} no node{shared}; {short_name(pod, job_name)}: {message}"
        )
    for event in sorted(events, key=event_time, reverse=True):
        message = event.get("message") or ""
        if "exceeded quota" in message:
            return Diagnosis(Reason.QUOTA_EXCEEDED, message)
        if str(event.get("reason", "")).startswith(NOT_CREATED):
            return Diagnosis(Reason.PODS_NOT_CREATED, message)
    return None


def _waiting(pod: dict[str, Any]) -> list[dict[str, Any]]:
    status = pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [state["state"]["waiting"] for state in states if (state.get("state") or {}).get("waiting")]


def _claims(pod: dict[str, Any]) -> list[str]:
    """The claims that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    claims = (
        each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each
    )
    return list(dict.fromkeys(claims))


def _unschedulable(pod: dict[str, Any]) -> str | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("reason") != "Unschedulable":
        return None
    return str(scheduled.get("message") or "unschedulable")

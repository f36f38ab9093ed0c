"""Why pods do not run, in the words of whoever holds them up."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from megatron_operator.lifecycle.pod_termination import short_name

IMAGE_REASONS = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
WITHOUT_PLACE = frozenset({"Unschedulable", "QuotaExceeded", "PodsNotCreated"})
"""Obstacles that are gone when there is room elsewhere."""
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first thing that must be mended."""

    reason: str
    message: str


def diagnose(
    pods: Iterable[dict[str, Any]], events: Iterable[dict[str, Any]], job_name: str
) -> Diagnosis | None:
    """The most telling obstacle: images first, then configuration, placement, and what could not be created.

    `events` are the warnings about the job; they matter where pods are missing.
    """
    waiting = [(pod, state) for pod in pods for state in _waiting(pod)]
    for reason, reasons in (("ImagePullFailed", IMAGE_REASONS), ("PodConfigError", CONFIG_REASONS)):
        for pod, state in waiting:
            if state.get("reason") in reasons:
                said = state.get("message") or state["reason"]
                return Diagnosis(reason, f"{short_name(pod, job_name)}: {state['reason']}: {said}")
    unplaced = [(pod, message) for pod in pods if (message := _unschedulable(pod))]
    if unplaced:
        pod, message = unplaced[0]
        count = "1 pod has" if len(unplaced) == 1 else f"{len(unplaced)} pods have"
        return Diagnosis("Unschedulable", f"{count} no node; {short_name(pod, job_name)}: {message}")
    for event in sorted(events, key=_time, reverse=True):
        message = event.get("message") or ""
        if "exceeded quota" in message:
            return Diagnosis("QuotaExceeded", message)
        if str(event.get("reason", "")).startswith("FailedCreate"):
            return Diagnosis("PodsNotCreated", message)
    return None


def _waiting(pod: dict[str, Any]) -> list[dict[str, Any]]:
    status = pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [state["state"]["waiting"] for state in states if (state.get("state") or {}).get("waiting")]


def _unschedulable(pod: dict[str, Any]) -> str | None:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return str(condition.get("message") or "unschedulable")
    return None


def _time(event: dict[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")

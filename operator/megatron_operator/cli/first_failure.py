"""Finds the pod of a run that failed first, and which of its container's logs shows the failure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.times import seconds, timestamp
from megatron_operator.manifests.job_backends import newest_by_place, node_rank, stable_name

Object = dict[str, Any]
DETECTED_WITHIN = 60.0
"""Longest time in seconds from a failure until the operator records it."""


@dataclass(frozen=True, slots=True)
class FailedPod:
    """The pod whose log shows the failure."""

    pod: str
    node: str | None
    rank: int | None
    """Global rank that failed; None where it is not known."""
    previous: bool
    """The container has restarted since: the failure is in the log of its previous instance."""
    why: str
    time: str | None = None
    """When it failed, RFC 3339; None where nothing has failed."""
    exited: bool = False
    """The container ended with the failure, so its log does too."""
    replaced: bool = False
    """The pod was created after the failure, whose log went with the pod before it."""


def first_failed_pod(recipe: Object, pods: Sequence[Object]) -> FailedPod | None:
    """The pod that failed first: by container exits since the last incident, else by that incident.

    The master where nothing has failed; None without pods.
    """
    if not pods:
        return None
    ordered = sorted(pods, key=node_rank)
    master = min(newest_by_place(pods), key=node_rank)
    recovery = (recipe.get("status") or {}).get("recovery") or {}
    incident = recovery.get("lastIncident") or {}
    detected = seconds(incident.get("time")) or 0.0
    exits = [exit_ for pod in ordered if (exit_ := _failed_exit(pod)) and exit_.time > detected]
    if exits:
        first = min(exits, key=lambda exit_: (exit_.time, node_rank(exit_.pod)))
        found = _failed_pod(first.pod, None, first.previous, first.description)
        return replace(found, time=timestamp(first.time), exited=True)
    if not incident:
        return _failed_pod(master, None, False, "nothing has failed; this is the master")
    failed = _pod_named(ordered, str(incident.get("pod")))
    if failed is None:
        why = f"the last incident: {incident['cause']}; this is the master"
        found = _failed_pod(master, None, False, why)
        return replace(found, time=incident.get("time"), replaced=_born(master) > detected)
    why = f"{incident['cause']} ({incident['time']})"
    if _born(failed) > detected:
        # The log was deleted with the failed pod; the cause quotes its termination message.
        found = _failed_pod(
            failed, incident.get("rank"), False, f"{why}; that pod is gone, this one replaced it"
        )
        return replace(found, time=incident["time"], replaced=True)
    found = _failed_pod(failed, incident.get("rank"), _restarted(failed, detected), why)
    return replace(found, time=incident["time"], exited=found.previous)


def pod_of_rank(recipe: Object, pods: Sequence[Object], rank: int) -> FailedPod | None:
    """The pod that runs this global rank, or None."""
    per_node = int(((recipe.get("status") or {}).get("plan") or {}).get("perNode") or 1)
    for pod in newest_by_place(pods):
        if node_rank(pod) == rank // per_node:
            why = f"rank {rank} is local rank {rank % per_node} of {per_node} in this pod"
            return _failed_pod(pod, rank, False, why)
    return None


def _failed_pod(pod: Object, rank: int | None, previous: bool, why: str) -> FailedPod:
    return FailedPod(pod["metadata"]["name"], pod.get("spec", {}).get("nodeName"), rank, previous, why)


def _born(pod: Object) -> float:
    """When the pod was created, in Unix seconds; 0.0 where that is not known."""
    return seconds(pod["metadata"].get("creationTimestamp")) or 0.0


def _pod_named(pods: Sequence[Object], short_name: str) -> Object | None:
    return next((pod for pod in pods if stable_name(pod).endswith(f"-{short_name}")), None)


def _trainer_container(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((dict(each) for each in statuses if each.get("name") == CONTAINER_NAME), {})


@dataclass(frozen=True, slots=True)
class _FailedExit:
    time: float
    """Unix time in seconds."""
    pod: Object
    description: str
    previous: bool


def _failed_exit(pod: Object) -> _FailedExit | None:
    """The last exit of the pod's trainer container with an error."""
    container = _trainer_container(pod)
    for state, previous in (("state", False), ("lastState", True)):
        ended = (container.get(state) or {}).get("terminated")
        if ended and ended.get("exitCode"):
            reason = ended.get("reason") or "Error"
            description = f"its container exited with code {ended['exitCode']} ({reason})"
            return _FailedExit(seconds(ended.get("finishedAt")) or 0.0, pod, description, previous)
    return None


def _restarted(pod: Object, detected: float) -> bool:
    """Whether the container has restarted since the failure, which precedes its detection."""
    container = _trainer_container(pod)
    started = seconds(((container.get("state") or {}).get("running") or {}).get("startedAt")) or 0.0
    return bool((container.get("lastState") or {}).get("terminated")) and started > detected - DETECTED_WITHIN

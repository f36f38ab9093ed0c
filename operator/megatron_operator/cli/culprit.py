"""Which pod of a run failed first, and where its last words are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.times import seconds

Object = dict[str, Any]
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
NOTICED_WITHIN = 60.0
"""Seconds from a failure until the operator has noticed it, at most."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The pod whose log is worth reading."""

    pod: str
    node: str | None
    rank: int | None
    """Global rank that failed; none where nobody said."""
    previous: bool
    """Its container has been started anew since: the words are in the instance before."""
    why: str


def node_rank(pod: Object) -> int:
    """Index of the pod within its gang: the master is 0, worker i is i + 1."""
    labels = pod["metadata"].get("labels") or {}
    master = labels.get(REPLICA_TYPE) == "master"
    return 0 if master else int(labels.get(REPLICA_INDEX, 0)) + 1


def first_failed(recipe: Object, pods: Sequence[Object]) -> Culprit | None:
    """The pod that failed first: by the newest incident, else by how containers ended, else the master.

    None when there are no pods.
    """
    if not pods:
        return None
    ordered = sorted(pods, key=node_rank)
    recovery = (recipe.get("status") or {}).get("recovery") or {}
    incident = recovery.get("lastIncident") or {}
    noticed = seconds(incident.get("time")) or 0.0
    ordered = sorted(pods, key=node_rank)
    ends = [end for pod in ordered if (end := _end(pod)) and end.time > noticed]
    if ends:
        first = min(ends, key=lambda end: (end.time, node_rank(end.pod)))
        return _culprit(first.pod, None, first.previous, first.said)
    failed = _named(ordered, str(incident.get("pod")))
    if failed is None:
        why = f"the last incident: {incident['cause']}" if incident else "nothing has failed"
        return _culprit(ordered[0], None, False, f"{why}; this is the master")
    why = f"{incident['cause']} ({incident['time']})"
    if (seconds(failed["metadata"].get("creationTimestamp")) or 0.0) > noticed:
        # The log went with the pod that failed: its replacement's is printed, the cause has its last words.
        return _culprit(failed, incident.get("rank"), False, f"{why}; that pod is gone, this one replaced it")
    return _culprit(failed, incident.get("rank"), _restarted(failed, noticed), why)


def of_rank(recipe: Object, pods: Sequence[Object], rank: int) -> Culprit | None:
    """The pod that this rank runs in; none when there is none."""
    per_node = int(((recipe.get("status") or {}).get("plan") or {}).get("perNode") or 1)
    for pod in pods:
        if node_rank(pod) == rank // per_node:
            return _culprit(
                pod, rank, False, f"rank {rank} is local rank {rank % per_node} of {per_node} here"
            )
    return None


def _culprit(pod: Object, rank: int | None, previous: bool, why: str) -> Culprit:
    return Culprit(pod["metadata"]["name"], pod.get("spec", {}).get("nodeName"), rank, previous, why)


def _named(pods: Sequence[Object], short: str) -> Object | None:
    return next((pod for pod in pods if pod["metadata"]["name"].endswith(f"-{short}")), None)


def _container(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((dict(each) for each in statuses if each.get("name") == CONTAINER_NAME), {})


@dataclass(frozen=True, slots=True)
class _End:
    time: float
    pod: Object
    said: str
    previous: bool


def _end(pod: Object) -> _End | None:
    """How the pod's container last failed."""
    container = _container(pod)
    for state, previous in (("state", False), ("lastState", True)):
        ended = (container.get(state) or {}).get("terminated")
        if ended and ended.get("exitCode"):
            said = (
                f"its container ended with exit code {ended['exitCode']} ({ended.get('reason') or 'Error'})"
            )
            return _End(seconds(ended.get("finishedAt")) or 0.0, pod, said, previous)
    return None


def _restarted(pod: Object, noticed: float) -> bool:
    """Whether the container runs anew since the failure, which may be a moment before it was noticed."""
    container = _container(pod)
    started = seconds(((container.get("state") or {}).get("running") or {}).get("startedAt")) or 0.0
    return bool((container.get("lastState") or {}).get("terminated")) and started > noticed - NOTICED_WITHIN

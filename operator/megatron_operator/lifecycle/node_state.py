"""Whether a node's kubelet can still end the pods on it."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from megatron_operator.api.labels import ANNOTATION_UNCORDONED_AT
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.object_metadata import condition

NOT_READY_GRACE: Final = 30.0
"""Seconds beyond a pod's own grace period for a kubelet that is alive and reports its node not ready."""
UNREADABLE_NODE_GRACE: Final = 120.0
"""Seconds beyond a pod's own grace period, where nodes may not be read and only the pod's condition shows
that its node was lost."""
STUCK_GRACE: Final = 60.0
"""Seconds beyond a pod's own grace period for its removal once its containers have ended: its kubelet may
wait for a volume that cannot be unmounted."""


BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods away."""


_EPOCH: Final = re.compile(r"[0-9]{9,11}")
_RFC_3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class NodeState(StrEnum):
    """Whether a node's kubelet can end a pod."""

    READY = "ready"
    NOT_READY = "not ready"
    UNREACHABLE = "unreachable"
    """The node controller has had no heartbeat of the kubelet for its grace period."""
    GONE = "gone"


class Taint(NamedTuple):
    """A taint of a node, as in its spec."""

    key: str
    value: str
    effect: str


class StartTime(NamedTuple):
    """When maintenance of a node starts."""

    time: float
    """Seconds since the epoch."""
    sign: str
    """`node label KEY` or `node annotation KEY`."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's state at one moment."""

    state: NodeState
    since: float = 0.0
    """When the node entered this state, seconds since the epoch."""
    conditions: frozenset[str] = frozenset()
    """Its conditions but Ready, as `Type=Status`."""
    taints: frozenset[str] = frozenset()
    """Keys of its taints."""
    blocking: frozenset[Taint] = frozenset()
    """Those of its taints that keep pods away."""
    starts: frozenset[StartTime] = frozenset()
    """When maintenance of it starts, by labels and annotations that the platform names."""
    devices: frozenset[str] = frozenset()
    """A text for each device of it that is tainted and that the run uses, or did before it moved."""
    uncordoned: float = 0.0
    """When a cordon of the operator's ended, seconds since the epoch; 0: never, or cordoned again."""


def with_signs(status: NodeStatus, node: Mapping[str, Any]) -> NodeStatus:
    """The status with what monitors of the node's hardware report, and when it was uncordoned."""
    uncordoned = str((node["metadata"].get("annotations") or {}).get(ANNOTATION_UNCORDONED_AT))
    conditions = (node.get("status") or {}).get("conditions") or []
    taints = (node.get("spec") or {}).get("taints") or []
    return replace(
        status,
        conditions=frozenset(
            f"{c.get('type')}={c.get('status')}" for c in conditions if c.get("type") != "Ready"
        ),
        taints=frozenset(str(taint.get("key")) for taint in taints),
        blocking=frozenset(
            Taint(str(each.get("key")), str(each.get("value") or ""), str(each.get("effect")))
            for each in taints
            if each.get("effect") in BLOCKING_EFFECTS
        ),
        uncordoned=float(uncordoned) if _EPOCH.fullmatch(uncordoned) else 0.0,
    )


def start_times(node: Mapping[str, Any], keys: Collection[str]) -> frozenset[StartTime]:
    """What the labels and annotations with these keys have.

    None for a value that is no time, or none after 1970, such as Go's zero time for one that is not set.
    """
    found = ((sign, _start_time(value)) for sign, value in _start_values(node, keys))
    return frozenset(StartTime(time, sign) for sign, time in found if time is not None and time > 0)


def unreadable_start_times(node: Mapping[str, Any], keys: Collection[str]) -> dict[str, str]:
    """The values with these keys that are no time, by `node label KEY` or `node annotation KEY`."""
    return {sign: value for sign, value in _start_values(node, keys) if _start_time(value) is None}


def _start_values(node: Mapping[str, Any], keys: Collection[str]) -> Iterator[tuple[str, str]]:
    for kind in ("label", "annotation"):
        values = node["metadata"].get(f"{kind}s") or {}
        for key in sorted(values.keys() & set(keys)):
            yield f"node {kind} {key}", str(values[key])


def _start_time(value: str) -> float | None:
    """Seconds since 1970 of a value in these, or in RFC 3339; None for another one."""
    if _EPOCH.fullmatch(value):
        return float(value)
    return seconds(value.upper()) if _RFC_3339.fullmatch(value.upper()) else None


def node_state(node: Mapping[str, Any]) -> NodeState:
    """The state that the node's Ready condition stands for."""
    states = {"True": NodeState.READY, "False": NodeState.NOT_READY}
    return states.get(str(ready_condition(node).get("status")), NodeState.UNREACHABLE)


def ready_condition(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node's Ready condition; empty when it has none."""
    return condition(node, "Ready")


def node_of(pod: Mapping[str, Any]) -> str | None:
    """Name of the node that a pod is bound to; None before it is bound."""
    return (pod.get("spec") or {}).get("nodeName")


def overdue(pod: Mapping[str, Any], now: float) -> bool:
    """Whether a pod still exists after its grace period. `now` is in seconds since the epoch."""
    due = seconds(pod["metadata"].get("deletionTimestamp"))
    return due is not None and now > due


def stuck(pod: Mapping[str, Any], now: float) -> bool:
    """Whether a pod that is deleted has ended, and is not removed. `now` is in seconds since the epoch.

    One with finalizers waits for who set them, whatever its kubelet does.
    """
    metadata = pod["metadata"]
    due = seconds(metadata.get("deletionTimestamp"))
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended and not metadata.get("finalizers") and due is not None and now > due + STUCK_GRACE


def unreachable_since(pod: Mapping[str, Any], node: NodeStatus | None, now: float) -> float | None:
    """Since when no kubelet can end a pod that is being deleted; None while one can, or nothing is known.

    A kubelet that is alive gets the pod's grace period, even if it reports its node not ready. `node` is None
    when it may not be read: then only the condition on the pod counts. Times are seconds since the epoch.
    """
    due = seconds(pod["metadata"].get("deletionTimestamp"))
    if due is None:
        return None
    if node is None:
        evicted = disruption_target(pod).get("reason") == "DeletionByTaintManager"
        return due if evicted and now > due + UNREADABLE_NODE_GRACE else None
    match node.state:
        case NodeState.READY:
            return None
        case NodeState.NOT_READY:
            return due if now > due + NOT_READY_GRACE else None
        case _:
            return node.since


def disruption_target(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod's condition DisruptionTarget while it is True; empty otherwise."""
    found = condition(pod, "DisruptionTarget")
    return found if found.get("status") == "True" else {}

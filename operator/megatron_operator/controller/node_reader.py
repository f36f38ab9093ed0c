"""What nodes say of themselves. Read only where a pod's fate hangs on it: a large cluster's list is large."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from megatron_operator.api.times import seconds
from megatron_operator.controller.api_client import NODES, Cluster, Object

FRESH: Final = 2.0
"""Seconds for which an answer is taken as it is; all pods of a dead rack ask about the same nodes."""
ONE_BY_ONE: Final = 16
"""Of more nodes than that the whole list is asked for."""
NOT_READY_GRACE: Final = 30.0
"""Seconds beyond a pod's own grace period for a kubelet that is alive and says that its node is not ready."""
BLIND_GRACE: Final = 120.0
"""The same where nodes may not be read, and the pod's own word that its node was lost must do."""


class NodeState(StrEnum):
    """Whether a node's kubelet can end a pod."""

    READY = "ready"
    NOT_READY = "not ready"
    SILENT = "unreachable"
    """The kubelet has not been heard of for the node controller's grace period."""
    GONE = "gone"


def node_state(node: Mapping[str, Any]) -> NodeState:
    """By the node's Ready condition."""
    known = {"True": NodeState.READY, "False": NodeState.NOT_READY}
    return known.get(str(_ready(node).get("status")), NodeState.SILENT)


def _ready(node: Mapping[str, Any]) -> dict[str, Any]:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c.get("type") == "Ready"), {})


def node_of(pod: Mapping[str, Any]) -> str | None:
    """Where a pod runs; None before it is bound."""
    return (pod.get("spec") or {}).get("nodeName")


def overdue(pod: Mapping[str, Any], now: float) -> bool:
    """Whether a pod's grace period has passed and it is still there."""
    due = seconds(pod["metadata"].get("deletionTimestamp"))
    return due is not None and now > due


@dataclass(frozen=True, slots=True)
class Node:
    """A node at one look."""

    state: NodeState
    since: float = 0.0
    """When it became so, seconds since the epoch."""


def unreachable_since(pod: Mapping[str, Any], node: Node | None, now: float) -> float | None:
    """Since when nobody can end a pod that is being deleted; None when its kubelet can, or nothing is known.

    A kubelet that is alive has the pod's grace period, though it calls its node not ready. `node` is None
    when it may not be read: only what Kubernetes wrote on the pod tells then.
    """
    due = seconds(pod["metadata"].get("deletionTimestamp"))
    if due is None:
        return None
    if node is None:
        return due if _lost_by_its_own_word(pod) and now > due + BLIND_GRACE else None
    match node.state:
        case NodeState.READY:
            return None
        case NodeState.NOT_READY:
            return due if now > due + NOT_READY_GRACE else None
        case _:
            return node.since


def _lost_by_its_own_word(pod: Mapping[str, Any]) -> bool:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if (condition.get("type"), condition.get("status")) == ("DisruptionTarget", "True"):
            return bool(condition.get("reason") == "DeletionByTaintManager")
    return False


class Nodes:
    """Asks the API server about single nodes, and remembers the answer for a moment."""

    def __init__(self, cluster: Cluster, *, allowed: bool) -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._seen: dict[str, tuple[float, Node]] = {}
        self._bad_since: dict[str, float] = {}

    async def of(self, pods: Iterable[Mapping[str, Any]], now: float) -> dict[str, Node]:
        """The nodes of those pods that are being deleted; none where nodes may not be read."""
        names = {node_of(pod) for pod in pods if pod["metadata"].get("deletionTimestamp")} - {None}
        wanted = {str(name) for name in names}
        if not wanted or not self._allowed:
            return {}
        moment = time.monotonic()
        self._seen = {name: seen for name, seen in self._seen.items() if moment - seen[0] < FRESH}
        missing = sorted(wanted - self._seen.keys())
        if missing:
            there = {node["metadata"]["name"]: node for node in await self._read(missing)}
            for name in missing:
                self._seen[name] = moment, self._judge(name, there.get(name), moment, now)
        return {name: self._seen[name][1] for name in wanted}

    def _judge(self, name: str, node: Object | None, moment: float, now: float) -> Node:
        state = NodeState.GONE if node is None else node_state(node)
        if node is None or state is NodeState.READY:
            self._bad_since.pop(name, None)
            return Node(state)
        # The operator's clock may have been set back: what it has seen itself counts too.
        seen_for = moment - self._bad_since.setdefault(name, moment)
        return Node(state, min(seconds(_ready(node).get("lastTransitionTime")) or now, now - seen_for))

    async def _read(self, names: list[str]) -> list[Object]:
        if len(names) > ONE_BY_ONE:
            return await self._cluster.find(NODES, None)
        fields = (f"metadata.name={name}" for name in names)
        found = await asyncio.gather(*(self._cluster.find(NODES, None, fields=field) for field in fields))
        return [node for nodes in found for node in nodes]

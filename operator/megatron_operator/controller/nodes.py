"""What nodes say of themselves. Read only where a pod's fate hangs on it: a large cluster's list is large."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from megatron_operator.controller.cluster import NODES, Cluster, Object
from megatron_operator.controller.draft import seconds

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

    @property
    def lost(self) -> bool:
        return self in (NodeState.SILENT, NodeState.GONE)


def node_state(node: Object) -> NodeState:
    """By the node's Ready condition."""
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            known = {"True": NodeState.READY, "False": NodeState.NOT_READY}
            return known.get(condition.get("status"), NodeState.SILENT)
    return NodeState.SILENT


def node_of(pod: Mapping[str, Any]) -> str | None:
    """Where a pod runs; None before it is bound."""
    return (pod.get("spec") or {}).get("nodeName")


def overdue(pod: Mapping[str, Any], node: NodeState | None, now: float) -> bool:
    """Whether a pod that is being deleted will stay for ever unless it is deleted by force.

    A silent kubelet counts no grace period, so nothing is gained by waiting for its end; should the pod still
    run there, its launcher sees that it was replaced and writes nothing more. `node` is None when unknown.
    """
    due = seconds(pod["metadata"].get("deletionTimestamp"))
    if due is None:
        return False
    if node is None:
        return _lost_by_its_own_word(pod) and now > due + BLIND_GRACE
    return node.lost or (node is NodeState.NOT_READY and now > due + NOT_READY_GRACE)


def _lost_by_its_own_word(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(
        (c.get("type"), c.get("reason")) == ("DisruptionTarget", "DeletionByTaintManager") for c in conditions
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    state: NodeState
    at: float


class Nodes:
    """Asks the API server about single nodes, and remembers the answer for a moment."""

    def __init__(self, cluster: Cluster, *, allowed: bool) -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._seen: dict[str, _Seen] = {}

    async def states(self, names: Iterable[str]) -> dict[str, NodeState]:
        """How these nodes are; nothing of them where nodes may not be read."""
        wanted = set(names)
        if not wanted or not self._allowed:
            return {}
        now = time.monotonic()
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen.at < FRESH}
        missing = sorted(wanted - self._seen.keys())
        if missing:
            there = {node["metadata"]["name"]: node_state(node) for node in await self._read(missing)}
            self._seen |= {name: _Seen(there.get(name, NodeState.GONE), now) for name in missing}
        return {name: self._seen[name].state for name in wanted}

    async def _read(self, names: list[str]) -> list[Object]:
        if len(names) > ONE_BY_ONE:
            return await self._cluster.find(NODES, None)
        fields = (f"metadata.name={name}" for name in names)
        found = await asyncio.gather(*(self._cluster.find(NODES, None, fields=field) for field in fields))
        return [node for nodes in found for node in nodes]

    async def of(self, pods: Iterable[Mapping[str, Any]]) -> dict[str, NodeState]:
        """The nodes of those pods that are being deleted."""
        deleting = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        return await self.states(name for pod in deleting if (name := node_of(pod)))

    async def stuck(self, pods: Iterable[Object], now: float) -> list[Object]:
        """Of these, the ones that only a deletion by force ends."""
        pods = list(pods)
        states = await self.of(pods)
        return [pod for pod in pods if overdue(pod, states.get(node_of(pod) or ""), now)]

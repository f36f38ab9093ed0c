"""Reads nodes only where the fate of a pod depends on them: the node list of a large cluster is large.

What the watch of nodes has is not read, unless a pod could be deleted by force because of it.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from megatron_operator.api.times import seconds
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import NODES
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.node_state import (
    NodeState,
    NodeStatus,
    Taint,
    node_of,
    node_state,
    ready_condition,
    with_signs,
)
from megatron_operator.lifecycle.object_metadata import Object, is_deleting

FRESH: Final = 2.0
"""Seconds for which a node's state is cached; all pods of a failed rack ask for the same nodes."""
ONE_BY_ONE: Final = 16
"""Most nodes that are read one by one; for more, the whole list is read once."""


class NodeReader:
    """Reads the state of single nodes and caches it briefly.

    `allowed` is whether the operator may read nodes at all.
    """

    def __init__(self, api: ApiClient, watch: NodeWatch | None = None, *, allowed: bool) -> None:
        self._api = api
        self._watch = watch
        self._allowed = allowed
        self._cache: dict[str, tuple[float, NodeStatus]] = {}
        self._bad_since: dict[str, tuple[str | None, float]] = {}
        """Nodes that are not ready -> lastTransitionTime, and time.monotonic() when it was first read."""

    async def of(
        self, pods: Iterable[Mapping[str, Any]], now: float, also: Iterable[str] = ()
    ) -> dict[str, NodeStatus]:
        """Nodes of those pods that are being deleted, and `also`; empty where nodes may not be read.

        `now` is in seconds since the epoch.
        """
        held = {name for pod in pods if is_deleting(pod) and (name := node_of(pod)) is not None}
        names = held.union(also)
        if not names or not self._allowed:
            return {}
        watched = self._watched(names, held)
        moment = time.monotonic()
        self._cache = {name: entry for name, entry in self._cache.items() if moment - entry[0] < FRESH}
        # Taken before the read, during which other runs replace the cache.
        states = {name: entry[1] for name, entry in self._cache.items() if name in names} | watched
        missing = sorted(names - states.keys())
        if missing:
            found = await self._read(missing)
            for name in missing:
                states[name] = self._status(name, found.get(name), moment, now)
                self._cache[name] = moment, states[name]
        return states

    def taints(self) -> frozenset[Taint] | None:
        """Taints of ready nodes that keep pods away; None where nodes are not watched, or not listed yet."""
        return None if self._watch is None else self._watch.taints()

    def _watched(self, names: Collection[str], held: Collection[str]) -> dict[str, NodeStatus]:
        """Nodes as the watch has them, if it is up to date.

        Those in `held` have pods that are being deleted. If such a node is gone or not ready, its pods may be
        deleted by force, which must not rest on a state that is over: then it is read.
        """
        known = None if self._watch is None else self._watch.fresh(names)
        if known is None:
            return {}
        found = {name: known.get(name, NodeStatus(NodeState.GONE)) for name in names}
        usable = {n: node for n, node in found.items() if n not in held or node.state is NodeState.READY}
        for name, node in usable.items():
            if node.state is NodeState.READY:
                self._bad_since.pop(name, None)
        return usable

    def _status(self, name: str, node: Object | None, moment: float, now: float) -> NodeStatus:
        state = NodeState.GONE if node is None else node_state(node)
        if node is None or state is NodeState.READY:
            self._bad_since.pop(name, None)
            return NodeStatus(state) if node is None else with_signs(NodeStatus(state), node)
        changed = ready_condition(node).get("lastTransitionTime")
        known = self._bad_since.get(name)
        if known is None or known[0] != changed:  # Ready in between, it may not have been read.
            known = self._bad_since[name] = changed, moment
        # The operator's clock may have been set back, so the time since the first observation counts too.
        since = min(seconds(changed) or now, now - (moment - known[1]))
        return with_signs(NodeStatus(state, since), node)

    async def _read(self, names: list[str]) -> dict[str, Object]:
        """These nodes by name, as far as they exist."""
        if len(names) > ONE_BY_ONE:
            pages = self._api.pages(NODES, None)
            wanted = set(names)
            return {n: node async for page in pages for node in page if (n := _name(node)) in wanted}
        fields = (f"metadata.name={name}" for name in names)
        found = await asyncio.gather(*(self._api.find(NODES, None, fields=field) for field in fields))
        return {_name(node): node for nodes in found for node in nodes}


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])

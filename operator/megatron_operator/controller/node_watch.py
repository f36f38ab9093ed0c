"""Watches the conditions, taints and announced maintenance of all nodes: one list, then only what changes.

Of each node only these are kept, and healthy nodes share one entry. An undisturbed run costs no request for
its nodes, a disturbed one only for nodes that may have lost their kubelet, and a node's heartbeats cause no
reconcile.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from megatron_operator.api.errors import shown
from megatron_operator.api.platform import Maintenance
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import NODES
from megatron_operator.controller.collection_watch import CollectionWatch
from megatron_operator.lifecycle.maintenance import is_near, maintenance_sign, maintenance_start
from megatron_operator.lifecycle.node_state import (
    NodeState,
    NodeStatus,
    Taint,
    node_state,
    start_times,
    unreadable_start_times,
    with_signs,
)
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

MOST_LOGGED: Final = 100
"""Labels and annotations of nodes whose values are logged because they are no times."""


class NodeWatch(CollectionWatch[NodeStatus]):
    """What monitors and autoscalers report on nodes. `notify` gets the runs with a node that changed."""

    def __init__(self, api: ApiClient, notify: Callable[[RecipeKey], None]) -> None:
        super().__init__(api, NODES)
        self._notify = notify
        self._runs: dict[RecipeKey, frozenset[str]] = {}
        self._start_times = frozenset(Maintenance().start_times)
        self._logged = set[tuple[str, str]]()

    def follow_start_times(self, keys: Collection[str]) -> None:
        """Keep these labels and annotations of nodes; for others than before, all nodes are listed again."""
        if self._start_times != frozenset(keys):
            self._start_times = frozenset(keys)
            self._logged.clear()
            self.list_again()

    def of(self, run: RecipeKey, names: Collection[str]) -> dict[str, NodeStatus] | None:
        """Those of the run's nodes that exist; None before the first list.

        The run is notified of their changes from now on.
        """
        self._runs[run] = frozenset(names)
        if self._kept is None:
            return None
        return {name: node for name in names if (node := self._kept.get(name)) is not None}

    def fresh(self, names: Collection[str]) -> dict[str, NodeStatus] | None:
        """Those of these nodes that exist; None while the watch is silent or has missed changes.

        They are without the time since when they are in their state.
        """
        if self._kept is None or not self.up_to_date():
            return None
        return {name: node for name in names if (node := self._kept.get(name)) is not None}

    def forget(self, run: RecipeKey) -> None:
        """Notify the run no longer."""
        self._runs.pop(run, None)

    def announcing(self, rules: Maintenance, now: float, grace: float = 0.0) -> dict[str, str]:
        """Nodes that announce maintenance by these rules, now or soon, and what announces it.

        Those that go first come first.

        `grace`: seconds in which the pods of the run that asks save a checkpoint and end.
        """
        nodes = self._kept or {}
        signs = {
            node: maintenance_sign(node, rules, now) if is_near(node, rules, now, grace) else None
            for node in set(nodes.values())
        }
        starts = {
            node: maintenance_start(node, rules, now, grace) or 0.0
            for node, sign in signs.items()
            if sign is not None
        }
        first = sorted((starts[node], name) for name, node in nodes.items() if node in starts)
        return {name: sign for _, name in first if (sign := signs[nodes[name]]) is not None}

    def taints(self) -> frozenset[Taint] | None:
        """Those of the ready nodes that keep pods away; None before the first list."""
        if self._kept is None:
            return None
        statuses = set(self._kept.values())
        return frozenset(
            taint for each in statuses if each.state is NodeState.READY for taint in each.blocking
        )

    def _keep(self, obj: Object) -> NodeStatus:
        """The node's state, conditions and taints; not since when, so that healthy nodes are equal."""
        starts = start_times(obj, self._start_times)
        status = with_signs(NodeStatus(node_state(obj), starts=starts), obj)
        self._log_unreadable(obj)
        shared: NodeStatus = self._shared.setdefault(status, status)
        return shared

    def _log_unreadable(self, obj: Object) -> None:
        """Log the values that are no times, once for each node and key."""
        name = obj["metadata"]["name"]
        for sign, value in unreadable_start_times(obj, self._start_times).items():
            if (name, sign) not in self._logged and len(self._logged) < MOST_LOGGED:
                self._logged.add((name, sign))
                text = "node %s: %s is %s, which is no time: use seconds since 1970, or RFC 3339 with a zone"
                log.warning(text, name, sign, shown(value))

    def _changed(self, before: Mapping[str, NodeStatus | None]) -> None:
        for run, nodes in list(self._runs.items()):
            if not nodes.isdisjoint(before):
                self._notify(run)

"""Watches the conditions and taints of all nodes: one list, then only what changes.

Of each node only these are kept, and healthy nodes share one entry. An undisturbed run costs no request for
its nodes, a disturbed one only for nodes that may have lost their kubelet, and a node's heartbeats cause no
reconcile.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

import aiohttp

from megatron_operator.api.errors import described
from megatron_operator.api.platform import Maintenance
from megatron_operator.controller.api_client import NODES, ApiClient, ApiError
from megatron_operator.lifecycle.maintenance import maintenance_sign
from megatron_operator.lifecycle.node_state import NodeStatus, node_state, with_signs
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

DURATION: Final = 300
"""Seconds of one watch request."""
PAUSE: Final = 5.0
"""Seconds between two watch requests."""
LONGEST_PAUSE: Final = 300.0
"""Seconds; the pause doubles with each refused request, because a list of all nodes is expensive."""
LONGEST_SILENCE: Final = 75.0
"""Seconds without an event for which the watch counts as up to date: a bookmark comes each minute."""
GONE: Final = 410
"""The API server no longer has the changes since a version."""


class NodeWatch:
    """What monitors and autoscalers report on nodes. `notify` gets the runs with a node that changed."""

    def __init__(self, api: ApiClient, notify: Callable[[RecipeKey], None]) -> None:
        self._api = api
        self._notify = notify
        self._nodes: dict[str, NodeStatus] | None = None
        self._version = ""
        self._heard = 0.0
        """Monotonic seconds of the last list or event."""
        self._shared: dict[NodeStatus, NodeStatus] = {}
        self._runs: dict[RecipeKey, frozenset[str]] = {}

    def of(self, run: RecipeKey, names: Collection[str]) -> dict[str, NodeStatus] | None:
        """Those of the run's nodes that exist; None before the first list.

        The run is notified of their changes from now on.
        """
        self._runs[run] = frozenset(names)
        if self._nodes is None:
            return None
        return {name: node for name in names if (node := self._nodes.get(name)) is not None}

    def fresh(self, names: Collection[str]) -> dict[str, NodeStatus] | None:
        """Those of these nodes that exist; None while the watch is silent or has missed changes.

        They are without the time since when they are in their state.
        """
        silent = time.monotonic() - self._heard >= LONGEST_SILENCE
        if self._nodes is None or not self._version or silent:
            return None
        return {name: node for name in names if (node := self._nodes.get(name)) is not None}

    def forget(self, run: RecipeKey) -> None:
        """Notify the run no longer."""
        self._runs.pop(run, None)

    def announcing(self, rules: Maintenance) -> dict[str, str]:
        """Nodes that announce maintenance by these rules, and the condition or taint that does."""
        nodes = self._nodes or {}
        signs = {node: maintenance_sign(node, rules) for node in set(nodes.values())}
        return {name: sign for name, node in nodes.items() if (sign := signs[node]) is not None}

    async def run(self) -> None:
        """Watch for as long as the operator acts."""
        pause = PAUSE
        while True:
            try:
                if not self._version:
                    await self.refresh()
                await self.follow()
                pause = PAUSE
            except (OSError, aiohttp.ClientError) as error:
                # The next request continues from the last version.
                log.info("the watch of nodes has ended: %s", described(error))
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                else:
                    log.warning("cannot watch nodes: %s", error)
                    pause = min(2 * pause, LONGEST_PAUSE)
            except Exception as error:  # An event of another form; what it changed is in the next list.
                self._version = ""
                log.warning("cannot watch nodes: %s", described(error))
                pause = min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def refresh(self) -> None:
        """Read all nodes. Raises ApiError."""
        found: dict[str, NodeStatus] = {}
        shared: dict[NodeStatus, NodeStatus] = {}
        version, began = "", time.monotonic()
        async for first, page in self._api.versioned_pages(NODES, None):
            version = version or first
            for node in page:
                status = _signs(node)
                found[node["metadata"]["name"]] = shared.setdefault(status, status)
        before, self._nodes, self._shared, self._version = self._nodes or {}, found, shared, version
        self._heard = began
        self._changed({name for name in before.keys() | found if before.get(name) != found.get(name)})

    async def follow(self) -> None:
        """Follow changes until the request ends. Raises ApiError, OSError, aiohttp.ClientError."""
        async for event in self._api.watch(NODES, self._version, DURATION):
            self.handle(event)

    def handle(self, event: Object) -> None:
        """Take over a watch event."""
        node, nodes = event["object"], self._nodes if self._nodes is not None else {}
        self._version, name = node["metadata"]["resourceVersion"], node["metadata"].get("name")
        self._heard = time.monotonic()
        if event["type"] == "BOOKMARK":
            return
        before = nodes.get(name)
        if event["type"] == "DELETED":
            nodes.pop(name, None)
        else:
            status = _signs(node)
            nodes[name] = self._shared.setdefault(status, status)
        if nodes.get(name) != before:
            self._changed({name})

    def _changed(self, names: Collection[str]) -> None:
        for run, nodes in list(self._runs.items()):
            if not nodes.isdisjoint(names):
                self._notify(run)


def _signs(node: Object) -> NodeStatus:
    """The node's state, conditions and taints; not since when, so that healthy nodes are equal."""
    return with_signs(NodeStatus(node_state(node)), node)

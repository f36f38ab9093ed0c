"""Cordons nodes whose hardware failed, where the platform asks for it, and uncordons them."""

import asyncio
import logging
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.api.labels import LABEL_CORDONED_AT
from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.api_client import ApiClient, ApiError, lacks_right
from megatron_operator.controller.api_resources import NODES
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.metrics import DECISIONS
from megatron_operator.lifecycle.cordoning import (
    cordon_cap,
    cordon_patch,
    has_accelerators,
    healed,
    is_cordoned,
    is_own_cordon,
    release_patch,
    uncordon_patch,
)
from megatron_operator.lifecycle.maintenance import moving_rules
from megatron_operator.lifecycle.status_builder import StatusBuilder

NEVER_WITH_RIGHTS: Final = (
    "set platform.badNodes.cordon to false, or use a release without watchNamespaces, which has rights on "
    "nodes"
)
WITHOUT_RIGHTS: Final = (
    "run helm upgrade with platform.badNodes.cordon: true, which gives the operator rights on nodes"
)

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two checks of the nodes that are cordoned."""


class Cordoner:
    """Marks nodes as unschedulable and back."""

    def __init__(self, api: ApiClient, config: ConfigSource, *, namespaced: bool = False) -> None:
        """`namespaced`: whether the release has `watchNamespaces`, and so never rights on nodes."""
        self._api = api
        self._advice = NEVER_WITH_RIGHTS if namespaced else WITHOUT_RIGHTS
        self._config = config
        self._lock = asyncio.Lock()

    async def rules(self, status: StatusBuilder) -> tuple[BadNodes, Maintenance] | None:
        """The platform's rules for bad nodes, and what moves a run off a node; None where they are not known.

        Those of the last valid file while it is invalid, so that a mistake in it moves and releases nothing.
        """
        platform = await self._config.valid_platform()
        if platform is None:
            log.warning("%s: nodes are not judged before the platform file is valid", status.key)
            return None
        return platform.bad_nodes, moving_rules(platform.maintenance, platform.bad_nodes)

    async def cordon(self, status: StatusBuilder, nodes: tuple[str, ...], rules: BadNodes, pool: int) -> None:
        """Cordon nodes before the status records that the run avoids them.

        `pool` is the number of nodes that match the run. Beyond the platform's caps the run only avoids them.
        """
        if not rules.cordon:
            return
        async with self._lock:
            for node in nodes:
                try:
                    await self._cordon(status, node, rules, pool)
                except ApiError as error:
                    if not error.not_found and not error.refused:
                        raise
                    log.warning("%s: node %s not cordoned: %s", status.key, node, error)
                    if lacks_right(error):
                        _add_not_cordoned(status, node, f"{error.message}; {self._advice}")
                    elif error.refused:
                        _add_not_cordoned(status, node, error.message)

    async def _cordon(self, status: StatusBuilder, name: str, rules: BadNodes, pool: int) -> None:
        found = await self._api.find(NODES, None, fields=f"metadata.name={name}")
        evidence = status.recovery.node_evidence.get(name)
        if not found or evidence is None:
            log.warning("%s: node %s not cordoned: it does not exist", status.key, name)
            return
        platform = await self._config.valid_platform()
        if platform is None or not has_accelerators(found[0], platform):
            _add_not_cordoned(status, name, "no profile of platform.accelerators describes it")
            return
        patch = cordon_patch(found[0], evidence, status.now)
        if patch is None:
            return
        labelled = await self._api.find(NODES, None, labels=LABEL_CORDONED_AT)
        cordoned = [node for node in labelled if is_own_cordon(node)]
        if (reached := cordon_cap(cordoned, pool, rules, status.now)) is not None:
            _add_not_cordoned(status, name, f"the operator has cordoned {len(cordoned)} and {reached}")
            return
        await self._api.merge_node(found[0], patch)
        DECISIONS.labels("cordon_node").inc()
        log.warning("%s: node %s cordoned: %s", status.key, name, evidence.cause)

    async def uncordon_healed(self, now: float) -> None:
        """Uncordon the nodes that the operator cordoned and that are healthy again. Raises ApiError.

        Those that somebody uncordoned are the operator's no longer, also where they were cordoned again.

        `now` is in seconds since the epoch.
        """
        platform = await self._config.valid_platform()
        if platform is None or not platform.bad_nodes.cordon:
            return
        async with self._lock:
            for node in await self._api.find(NODES, None, labels=LABEL_CORDONED_AT):
                name = node["metadata"]["name"]
                if not is_cordoned(node):
                    # Its label would have a later cordon of somebody else undone.
                    await self._api.merge_node(node, uncordon_patch(now))
                    log.info("node %s was uncordoned by somebody: its label is removed", name)
                elif not is_own_cordon(node):
                    await self._api.merge_node(node, release_patch())
                    log.info("node %s was cordoned by somebody: it stays cordoned, without its label", name)
                elif (why := healed(node, platform.bad_nodes, now)) is not None:
                    await self._api.merge_node(node, uncordon_patch(now))
                    DECISIONS.labels("uncordon_node").inc()
                    log.warning("node %s uncordoned: %s", name, why)

    async def run(self) -> None:
        """Uncordon healthy nodes for as long as the operator acts."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.uncordon_healed(self._api.clock.now())
            except Exception as error:
                log.warning("cannot check the cordoned nodes: %s", described(error))


def _add_not_cordoned(status: StatusBuilder, node: str, why: str) -> None:
    text = f"this run avoids node {node}, but it is not cordoned: {why}"
    log.warning("%s: %s", status.key, text)
    status.add_event(Reason.NODE_NOT_CORDONED, text, warning=True)

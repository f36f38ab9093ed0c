"""Watches the devices of Dynamic Resource Allocation and their taints, where the cluster has any.

A cluster that does not serve `resource.k8s.io` is asked for its API groups every five minutes, and for no
more.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Final

from megatron_operator.api.errors import described
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import Resource
from megatron_operator.controller.collection_watch import CollectionWatch
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.lifecycle.device_snapshot import DeviceSnapshot
from megatron_operator.lifecycle.device_taints import (
    DeviceId,
    DeviceTaint,
    Slice,
    TaintRule,
    read_rule,
    read_slice,
)
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

GROUP: Final = "resource.k8s.io"
SLICES: Final = Resource(GROUP, "v1", "resourceslices")
RULES: Final = "devicetaintrules"
RULE_VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Versions of DeviceTaintRules, the preferred first."""
DISCOVERY: Final = 300.0
"""Seconds between two reads of the API groups that the cluster serves."""


class _SliceWatch(CollectionWatch[Slice]):
    """ResourceSlices. `changed` gets the nodes whose devices have changed."""

    OPTIONAL: ClassVar[bool] = True

    def __init__(self, api: ApiClient, changed: Callable[[Collection[str] | None], None]) -> None:
        super().__init__(api, SLICES)
        self._notify = changed
        self._names: dict[str, set[str]] = {}
        """Names of slices by node."""

    def of_node(self, node: str) -> list[Slice]:
        """The slices of a node's own devices."""
        kept = self._kept or {}
        return [kept[name] for name in sorted(self._names.get(node, ()))]

    def nodes(self) -> list[str]:
        """Nodes with devices of their own."""
        return list(self._names)

    def _keep(self, obj: Object) -> Slice:
        found = read_slice(obj)
        # Most nodes have the same devices.
        return Slice(
            found.node, found.driver, found.pool, self._shared.setdefault(found.devices, found.devices)
        )

    def _changed(self, before: Mapping[str, Slice | None]) -> None:
        nodes = set()
        for name, old in before.items():
            new = (self._kept or {}).get(name)
            if old is not None and old.node:
                nodes.add(old.node)
                names = self._names[old.node]
                names.discard(name)
                if not names:
                    del self._names[old.node]
            if new is not None and new.node:
                nodes.add(new.node)
                self._names.setdefault(new.node, set()).add(name)
        self._notify(nodes)


class _RuleWatch(CollectionWatch[TaintRule]):
    """DeviceTaintRules of the version that the cluster serves."""

    OPTIONAL: ClassVar[bool] = True

    def __init__(self, api: ApiClient, changed: Callable[[Collection[str] | None], None]) -> None:
        super().__init__(api, Resource(GROUP, RULE_VERSIONS[0], RULES))
        self._notify = changed

    async def run_with(self, version: str) -> None:
        """Watch this version; until it is listed the rules are those of the last one."""
        self._resource = Resource(GROUP, version, RULES)
        await self.run()

    def rules(self) -> Collection[TaintRule]:
        """All rules."""
        return (self._kept or {}).values()

    def _keep(self, obj: Object) -> TaintRule:
        return read_rule(obj)

    def _changed(self, before: Mapping[str, TaintRule | None]) -> None:
        if before:
            self._notify(None)


class DeviceWatch:
    """Devices of nodes and their taints. `notify` gets the runs with a node whose devices changed."""

    def __init__(self, api: ApiClient, config: ConfigSource, notify: Callable[[RecipeKey], None]) -> None:
        self._api = api
        self._config = config
        self._notify = notify
        self._slices: _SliceWatch | None = None
        self._rules: _RuleWatch | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[RecipeKey, frozenset[str]] = {}
        self._discovered = False
        """Whether it is known what is to be watched."""

    def notify_of(self, run: RecipeKey, nodes: Collection[str]) -> None:
        """Notify the run of changes of these nodes' devices from now on."""
        self._runs[run] = frozenset(nodes)

    def forget(self, run: RecipeKey) -> None:
        """Notify the run no longer."""
        self._runs.pop(run, None)

    def watches(self) -> bool:
        """Whether the cluster has devices, and they are to be known."""
        return self._slices is not None

    def known(self) -> bool:
        """Whether everything to be watched has been listed: before, a device without a taint may have one."""
        watches = (self._slices, self._rules)
        return self._discovered and all(each is None or each.listed() for each in watches)

    def snapshot(self, nodes: Iterable[str]) -> DeviceSnapshot:
        """The devices of these nodes now."""
        if self._slices is None:
            return DeviceSnapshot({})
        rules = () if self._rules is None else tuple(self._rules.rules())
        return DeviceSnapshot({node: self._slices.of_node(node) for node in nodes}, rules)

    def tainted(self, node: str) -> dict[DeviceId, tuple[DeviceTaint, ...]]:
        """The node's devices that are kept from pods, and their taints."""
        return self.snapshot((node,)).tainted(node)

    def nodes(self) -> list[str]:
        """Nodes with devices of their own."""
        return [] if self._slices is None else self._slices.nodes()

    async def run(self) -> None:
        """Watch for as long as the operator acts."""
        try:
            while True:
                try:
                    await self.discover()
                except Exception as error:
                    log.warning("cannot find out whether the cluster has devices: %s", described(error))
                await asyncio.sleep(DISCOVERY)
        finally:
            self._discovered = False
            await self._stop()

    async def discover(self) -> None:
        """Start watching what is served and not watched yet; stop where the platform does not want it.

        Raises ApiError.
        """
        if not (await self._config.maintenance()).device_taints:
            await self._stop()
        else:
            served = await self._api.served(GROUP)
            if SLICES.plural in served.get(SLICES.version, ()):
                self._start(served)
            elif self._ended(SLICES.plural):
                await self._stop()
            # Else only some API servers may lack it, as in an upgrade: the watch ends itself where all do.
        self._discovered = True

    def _start(self, served: Mapping[str, Collection[str]]) -> None:
        """Watch what is served, by version. What was watched before keeps what it has until the next list."""
        if self._ended(SLICES.plural):
            self._slices = self._slices or _SliceWatch(self._api, self._changed)
            self._watch(SLICES.plural, self._slices.run())
        if not self._ended(RULES):
            return
        version = next((each for each in RULE_VERSIONS if RULES in served.get(each, ())), None)
        if version is None:
            self._rules = None
            return
        self._rules = self._rules or _RuleWatch(self._api, self._changed)
        self._watch(RULES, self._rules.run_with(version))

    def _ended(self, plural: str) -> bool:
        return plural not in self._tasks or self._tasks[plural].done()

    def _watch(self, plural: str, watching: Coroutine[Any, Any, None]) -> None:
        self._tasks[plural] = asyncio.create_task(watching, name=plural)

    async def _stop(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        self._slices = self._rules = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, nodes: Collection[str] | None) -> None:
        """Notify the runs on these nodes; None: on any node."""
        for run, placed in list(self._runs.items()):
            if nodes is None or not placed.isdisjoint(nodes):
                self._notify(run)

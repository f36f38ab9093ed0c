"""Which devices of Dynamic Resource Allocation the pods of runs use, and what is free for others.

Claims are read only for pods on nodes with a tainted device, once for each pod: what is allocated to a claim
does not change while a pod uses it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from megatron_operator.api.recovery_status import NodeMaintenance
from megatron_operator.controller.api_client import ApiClient, ApiError, Resource
from megatron_operator.controller.device_watch import GROUP, SLICES, DeviceWatch
from megatron_operator.lifecycle.device_capacity import (
    DeviceKind,
    backed_amounts,
    extended_resources,
    limited,
)
from megatron_operator.lifecycle.device_taints import (
    Allocation,
    allocations,
    claims_of,
    eviction_cause,
    recorded_signs,
    signs,
)
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

CLAIMS: Final = Resource(GROUP, SLICES.version, "resourceclaims")
CLASSES: Final = Resource(GROUP, SLICES.version, "deviceclasses")


class DeviceReader:
    """Devices of runs. `watch` has the devices of nodes and their taints."""

    def __init__(self, api: ApiClient, watch: DeviceWatch) -> None:
        self._api = api
        self.watch = watch
        self._used: dict[RecipeKey, dict[str, tuple[Allocation, ...]]] = {}
        """Devices by the UID of the pod that uses them."""

    def forget(self, run: RecipeKey) -> None:
        """Drop what is kept of a run."""
        self._used.pop(run, None)
        self.watch.forget(run)

    def unread(self, run: RecipeKey, pods: Iterable[Object]) -> list[Object]:
        """Of these pods those that may use a tainted device, and whose claims have not been read."""
        known = self._used.get(run, {})
        return [
            pod
            for pod in pods
            if (node := node_of(pod)) is not None
            and claims_of(pod)
            and pod["metadata"]["uid"] not in known
            and self.watch.tainted(node)
        ]

    async def read(self, run: RecipeKey, pods: Collection[Object]) -> None:
        """Read the claims of those of the run's pods that may use a tainted device.

        None where the API server refuses it: then the pods are evicted without a move. Raises ApiError.
        """
        uids = {pod["metadata"]["uid"] for pod in pods}
        known = {uid: used for uid, used in self._used.get(run, {}).items() if uid in uids}
        self._used[run] = known
        for pod in self.unread(run, pods):
            known[pod["metadata"]["uid"]] = await self._allocations(pod)
        if not known:
            del self._used[run]

    async def _allocations(self, pod: Object) -> tuple[Allocation, ...]:
        namespace, found = pod["metadata"]["namespace"], list[Allocation]()
        for name in claims_of(pod):
            try:
                claim = await self._api.get(CLAIMS, namespace, name)
            except ApiError as error:
                if not error.refused:
                    raise
                log.warning("cannot read the claims of pod %s: %s", pod["metadata"]["name"], error)
                continue
            found += [] if claim is None else allocations(claim)
        return tuple(found)

    def signs(
        self, run: RecipeKey, pods: Iterable[Object], recorded: Mapping[str, NodeMaintenance]
    ) -> dict[str, frozenset[str]]:
        """Node -> a text for each of its tainted devices that the run's pods use.

        Of a `recorded` node without pods also the device for which the run left it. The run is notified of
        changes from now on.
        """
        used: dict[str, list[Allocation]] = {}
        known = self._used.get(run, {})
        for pod in pods:
            if (node := node_of(pod)) is not None:
                used.setdefault(node, []).extend(known.get(pod["metadata"]["uid"], ()))
        self.watch.notify_of(run, used.keys() | recorded.keys())
        found = {node: signs(self.watch.tainted(node), each) for node, each in used.items() if each}
        for node, entry in recorded.items():
            if node not in used:
                found[node] = recorded_signs(self.watch.tainted(node), entry.sign)
        return {node: texts for node, texts in found.items() if texts}

    def eviction_cause(self, node: str) -> str | None:
        """Why a pod was evicted from a node for the taint of a device; None where that is not known."""
        return eviction_cause(node, self.watch.tainted(node))

    async def limited(
        self, run: RecipeKey, pods: Collection[Object], fits: Mapping[str, int]
    ) -> Mapping[str, int]:
        """The part of `fits` for which there are devices such as the run's pods claim.

        `fits` is the number of the run's pods that fit on each node by its resources, with its own counted
        as free. Raises ApiError.
        """
        needed = self._needed(run, pods)
        if not needed:
            return fits
        own = {(pod["metadata"]["namespace"], name) for pod in pods for name in claims_of(pod)}
        usable = {node: self.watch.usable(node) for node in fits}
        owners = {device: (node, kind) for node in fits for device, kind in self.watch.kinds(node).items()}
        taken: dict[str, Counter[DeviceKind]] = {}
        tainted = {device for node in fits for device in self.watch.tainted(node)}
        async for page in self._api.pages(CLAIMS, None):
            for claim in page:
                if (claim["metadata"]["namespace"], claim["metadata"]["name"]) in own:
                    continue
                for each in allocations(claim):
                    if each.device in owners and each.device not in tainted:
                        node, kind = owners[each.device]
                        taken.setdefault(node, Counter())[kind] += 1
        return limited(fits, needed, usable, taken)

    def _needed(self, run: RecipeKey, pods: Iterable[Object]) -> Counter[DeviceKind]:
        """Devices of nodes that a pod of the run claims: the most of any whose claims have been read."""
        known, needed = self._used.get(run, {}), Counter[DeviceKind]()
        for pod in pods:
            kinds = self.watch.kinds(node_of(pod) or "")
            used = known.get(pod["metadata"]["uid"], ())
            needed |= Counter(kinds[each.device] for each in used if each.device in kinds)
        return needed

    async def backed(self) -> dict[str, dict[str, str]]:
        """Node -> extended resources that its devices back, as quantities. Raises ApiError.

        Empty where no DeviceClass backs one, or they may not be listed. The scheduler counts these, and no
        node has them.
        """
        if not self.watch.nodes():
            return {}
        try:
            resources = extended_resources(await self._api.find(CLASSES, None))
        except ApiError as error:
            if not error.refused:
                raise
            log.warning("devices do not count as extended resources: %s", error)
            return {}
        return await asyncio.to_thread(self._backed, resources)

    def _backed(self, resources: Mapping[str, tuple[str, str | None]]) -> dict[str, dict[str, str]]:
        amounts = {node: backed_amounts(self.watch.usable(node), resources) for node in self.watch.nodes()}
        return {node: each for node, each in amounts.items() if each}

"""Which devices of Dynamic Resource Allocation the pods of runs use, and what is free for others.

Claims are read for pods on nodes with a tainted device, once for each pod: what is allocated to a claim does
not change while a pod uses it. All claims are listed only with the nodes and pods of the whole cluster.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from megatron_operator.api.recovery_status import NodeMaintenance
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import Resource
from megatron_operator.controller.device_watch import GROUP, SLICES, DeviceWatch
from megatron_operator.lifecycle.device_capacity import (
    DeviceKind,
    backed_amounts,
    extended_resources,
    limited,
)
from megatron_operator.lifecycle.device_snapshot import DeviceSnapshot
from megatron_operator.lifecycle.device_taints import (
    Allocation,
    DeviceId,
    allocations,
    claims_of,
    eviction_cause,
    recorded_device,
    recorded_signs,
    signs,
)
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

CLAIMS: Final = Resource(GROUP, SLICES.version, "resourceclaims")
CLASSES: Final = Resource(GROUP, SLICES.version, "deviceclasses")
EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claims that the scheduler creates for extended resources."""
REFUSED: Final = 300.0
"""Seconds for which a run's claims are not read again after the API server refused it."""


class _Claim(NamedTuple):
    """What is kept of a ResourceClaim with devices."""

    namespace: str
    name: str
    devices: tuple[DeviceId, ...]
    extended: bool
    """Whether it is for an extended resource that a pod requests."""


class DeviceReader:
    """Devices of runs. `watch` has the devices of nodes and their taints."""

    def __init__(self, api: ApiClient, watch: DeviceWatch) -> None:
        self._api = api
        self.watch = watch
        self._used: dict[RecipeKey, dict[str, tuple[Allocation, ...]]] = {}
        """Devices by the UID of the pod that uses them."""
        self._refused: dict[RecipeKey, float] = {}
        """When the API server refused to read a run's claims, in monotonic seconds."""
        self._claims: tuple[_Claim, ...] | None = None
        """All claims with devices; None before the first list."""

    def forget(self, run: RecipeKey) -> None:
        """Drop what is kept of a run."""
        self._used.pop(run, None)
        self._refused.pop(run, None)
        self.watch.forget(run)

    def unread(self, run: RecipeKey, pods: Iterable[Object]) -> list[Object]:
        """Of these pods those that may use a tainted device, and whose claims are to be read."""
        if self._is_refused(run):
            return []
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

        None for a while where the API server refuses it: then the pods are evicted without a move. Raises
        ApiError.
        """
        uids = {pod["metadata"]["uid"] for pod in pods}
        known = {uid: used for uid, used in self._used.pop(run, {}).items() if uid in uids}
        if known:
            self._used[run] = known
        await self._read_claims(run, self.unread(run, pods))

    async def _read_claims(self, run: RecipeKey, pods: Iterable[Object]) -> None:
        for pod in pods:
            if self._is_refused(run):
                return
            metadata = pod["metadata"]
            try:
                claims = [await self._api.get(CLAIMS, metadata["namespace"], each) for each in claims_of(pod)]
            except ApiError as error:
                if not error.refused:
                    raise
                log.warning("cannot read the claims of pod %s: %s", metadata["name"], error)
                self._refused[run] = time.monotonic()
                return
            used = tuple(each for claim in claims if claim is not None for each in allocations(claim))
            self._used.setdefault(run, {})[metadata["uid"]] = used

    def _is_refused(self, run: RecipeKey) -> bool:
        return run in self._refused and time.monotonic() - self._refused[run] < REFUSED

    def signs(
        self, run: RecipeKey, pods: Iterable[Object], recorded: Mapping[str, NodeMaintenance]
    ) -> dict[str, frozenset[str]]:
        """Node -> a text for each of its tainted devices that the run's pods use.

        Of a `recorded` node without pods also the device for which the run left it. While it is not known
        whether a recorded device is tainted, its text stays. The run is notified of changes from now on.
        """
        used: dict[str, list[Allocation]] = {}
        known = self._used.get(run, {})
        for pod in pods:
            if (node := node_of(pod)) is not None:
                used.setdefault(node, []).extend(known.get(pod["metadata"]["uid"], ()))
        self.watch.notify_of(run, used.keys() | recorded.keys())
        found = {node: signs(self.watch.tainted(node), each) for node, each in used.items() if each}
        for node, entry in recorded.items():
            device, devices = recorded_device(entry.sign), self.watch.snapshot((node,))
            if device is None:
                continue
            if not self.watch.known() or devices.may_be_tainted(node, device):
                found[node] = found.get(node, frozenset()) | {entry.sign}
            elif node not in used:
                found[node] = recorded_signs(devices.tainted(node), entry.sign)
        return {node: texts for node, texts in found.items() if texts}

    def eviction_cause(self, node: str) -> str | None:
        """Why a pod was evicted from a node for the taint of a device; None where that is not known."""
        return eviction_cause(node, self.watch.tainted(node))

    def can_count(self, pods: Iterable[Object]) -> bool:
        """Whether `limited` can answer for these pods: they claim no devices, or what nodes have is known."""
        return self.watch.known() or not any(map(claims_of, pods))

    async def limited(
        self, run: RecipeKey, pods: Collection[Object], fits: Mapping[str, int]
    ) -> Mapping[str, int]:
        """The part of `fits` for which there are devices such as the run's pods claim.

        `fits` is the number of the run's pods that fit on each node by its resources, with its own counted
        as free. Raises ApiError.
        """
        needed = await self._needed(run, pods) if self.watch.watches() else None
        if not needed:
            return fits
        claims = await self._list_claims() if self._claims is None else self._claims
        own = {(pod["metadata"]["namespace"], name) for pod in pods for name in claims_of(pod)}
        # In a thread: ten thousand nodes take longer than the event loop may be blocked.
        return await asyncio.to_thread(_limited, fits, needed, self.watch.snapshot(fits), claims, own)

    async def _needed(self, run: RecipeKey, pods: Collection[Object]) -> Counter[DeviceKind]:
        """Devices of nodes that a pod of the run claims: the most of any whose claims have been read.

        Where none has, as before the maintenance of a node, those of one pod are read.
        """
        claiming = [pod for pod in pods if node_of(pod) is not None and claims_of(pod)]
        if not any(pod["metadata"]["uid"] in self._used.get(run, {}) for pod in claiming):
            await self._read_claims(run, claiming[:1])
        known, needed = self._used.get(run, {}), Counter[DeviceKind]()
        devices = self.watch.snapshot({node_of(pod) or "" for pod in claiming})
        for pod in claiming:
            if used := {each.device for each in known.get(pod["metadata"]["uid"], ())}:
                kinds = devices.kinds(node_of(pod) or "")
                needed |= Counter(kinds[device] for device in used if device in kinds)
        return needed

    async def backed(self) -> dict[str, dict[str, str]]:
        """Node -> extended resources that its free devices back, as quantities. Raises ApiError.

        Empty where no DeviceClass backs one, or what is needed may not be listed. The scheduler counts these,
        and no node has them. Devices that pods use as extended resources count as free: their requests are
        counted. All ResourceClaims are listed for it, also for `limited`.
        """
        if not (nodes := self.watch.nodes()):
            return {}
        try:
            claims = await self._list_claims()
            resources = extended_resources(await self._api.find(CLASSES, None))
        except ApiError as error:
            if not error.refused:
                raise
            self._claims = None
            log.warning("devices do not count as extended resources: %s", error)
            return {}
        return await asyncio.to_thread(_backed, self.watch.snapshot(nodes), claims, resources)

    async def _list_claims(self) -> tuple[_Claim, ...]:
        found: list[_Claim] = []
        async for page in self._api.pages(CLAIMS, None):
            for claim in page:
                if devices := tuple({each.device for each in allocations(claim)}):
                    metadata = claim["metadata"]
                    extended = EXTENDED in (metadata.get("annotations") or {})
                    found.append(_Claim(metadata["namespace"], metadata["name"], devices, extended))
        self._claims = tuple(found)
        return self._claims


def _limited(
    fits: Mapping[str, int],
    needed: Mapping[DeviceKind, int],
    devices: DeviceSnapshot,
    claims: Iterable[_Claim],
    own: Collection[tuple[str, str]],
) -> dict[str, int]:
    others = (each for each in claims if (each.namespace, each.name) not in own)
    held = {device for each in others for device in each.devices}
    return limited(fits, needed, {node: devices.usable(node, held) for node in fits})


def _backed(
    devices: DeviceSnapshot, claims: Iterable[_Claim], resources: Mapping[str, tuple[str, str | None]]
) -> dict[str, dict[str, str]]:
    held = {device for each in claims if not each.extended for device in each.devices}
    amounts = {node: backed_amounts(devices.usable(node, held), resources) for node in devices.slices}
    return {node: each for node, each in amounts.items() if each}

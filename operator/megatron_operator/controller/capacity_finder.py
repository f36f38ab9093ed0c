"""Which accelerators a run could have: asked of the whole cluster, so seldom and only where it matters."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.api.validation import parse_spec
from megatron_operator.controller.api_client import NODES, PODS, Cluster, Object
from megatron_operator.controller.config_source import Sources
from megatron_operator.controller.node_reader import node_of
from megatron_operator.controller.workqueue import Key
from megatron_operator.lifecycle import Capacity, Larger, Limits, fitting, larger
from megatron_operator.lifecycle.capacity import room
from megatron_operator.lifecycle.desired import acceptable
from megatron_operator.lifecycle.snapshot import Scene
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests import pytorchjob
from megatron_operator.manifests.node_avoidance import avoiding

FRESH: Final = 30.0
"""Seconds between two looks at all nodes and all pods of the cluster, over all runs."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What a run could have."""

    capacity: Capacity | None = None
    releasable: frozenset[str] = frozenset()
    """Nodes that it avoids and that have room for a pod of it."""


class RoomFinder:
    """Looks for room where runs wait for it or have been shrunk for want of it."""

    def __init__(self, cluster: Cluster, sources: Sources, *, allowed: bool) -> None:
        self._cluster = cluster
        self._sources = sources
        self._allowed = allowed
        self._lock = asyncio.Lock()
        self._read_at = -FRESH
        self._nodes: list[Object] = []
        self._pods: list[Object] = []
        self._fits: dict[Key, tuple[tuple[object, ...], int | None]] = {}

    def forget(self, key: Key) -> None:
        self._fits.pop(key, None)

    async def look(self, draft: Draft, scene: Scene, limits: Limits) -> Rooms:
        """Tells in the status what could be grown to, and since when."""
        recovery = draft.recovery
        waiting = recovery.waiting_since is not None
        elastic = limits.elastic is not None and (waiting or recovery.elastic is not None)
        release = waiting and bool(recovery.nodes_avoided)
        if not (elastic or release):
            return Rooms()
        if not self._allowed:
            return await self._blind(draft, scene, limits, elastic=elastic, waiting=waiting)
        nodes, pods = await self._snapshot()
        mine = {pod["metadata"]["uid"] for pod in scene.pods}
        places = room(nodes, pods, _template(avoiding(scene.job, recovery.nodes_avoided)), mine)
        capacity = await self._capacity(draft, scene, limits, sum(places.values())) if elastic else None
        if not release:
            return Rooms(capacity)
        anywhere = room(nodes, pods, _template(avoiding(scene.job, ())), mine)
        return Rooms(capacity, frozenset(recovery.nodes_avoided) & anywhere.keys())

    async def _blind(
        self, draft: Draft, scene: Scene, limits: Limits, *, elastic: bool, waiting: bool
    ) -> Rooms:
        """Without the right to look: what the run holds already is there, and avoided nodes may be."""
        bound = sum(node_of(pod) is not None for pod in scene.staying)
        capacity = await self._capacity(draft, scene, limits, bound) if elastic and waiting else None
        return Rooms(capacity, frozenset(draft.recovery.nodes_avoided) if waiting else frozenset())

    async def _capacity(self, draft: Draft, scene: Scene, limits: Limits, pods: int) -> Capacity | None:
        try:
            spec = parse_spec(draft.spec)
        except InvalidRecipeError:
            return None
        asked, count = spec.accelerator.count, scene.size * scene.per_node
        fits = await self._fitting(draft, spec, limits, pods * scene.per_node, scene.per_node)
        shrunk = draft.recovery.elastic
        if shrunk is None:
            return Capacity(asked, count, fits)
        since = seconds(shrunk.larger_since)
        known = Larger(shrunk.larger, since) if shrunk.larger and since is not None else None
        more = larger(known, count=count, fits=fits, now=draft.now)
        if more is None:
            none = {"larger": None, "larger_since": None}
            draft.set_recovery(elastic=shrunk.model_copy(update=none))
            return Capacity(asked, count, fits)
        told = {"larger": more.count, "larger_since": timestamp(more.since)}
        draft.set_recovery(elastic=shrunk.model_copy(update=told))
        return Capacity(asked, count, fits, more.count, more.since)

    async def _fitting(
        self, draft: Draft, spec: MegatronRecipeSpec, limits: Limits, free: int, per_node: int
    ) -> int | None:
        """The planner's answer is kept: it takes long, and what is free seldom changes."""
        if limits.elastic is None:
            return None
        asked, minimum = spec.accelerator.count, limits.elastic.min_count
        plan = draft.status.plan
        question = (draft.uid, draft.generation, min(free, asked), plan and plan.world_size)
        if draft.key not in self._fits or self._fits[draft.key][0] != question:
            known = await self._sources.known()
            answer = await asyncio.to_thread(
                fitting,
                free,
                asked=asked,
                min_count=minimum,
                per_node=per_node,
                accepts=lambda count: acceptable(draft, known, count),
            )
            self._fits[draft.key] = question, answer
        return self._fits[draft.key][1]

    async def _snapshot(self) -> tuple[list[Object], list[Object]]:
        async with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                self._nodes = await self._cluster.find(NODES, None)
                self._pods = await self._cluster.find(
                    PODS, None, fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
                )
                self._read_at = time.monotonic()
            return self._nodes, self._pods


def _template(job: Object) -> Object:
    return pytorchjob.templates(job)[-1]

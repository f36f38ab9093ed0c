"""Finds the accelerators that a run could have. It reads the whole cluster, so only where needed."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import Maintenance
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.validation import parse_spec
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.cluster_reader import ClusterReader
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.controller.inherited_runs import InheritedRuns
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.planning import Planning
from megatron_operator.controller.room_finder import RoomFinder
from megatron_operator.lifecycle.capacity import (
    ClusterUsage,
    claimed_by_others,
    fitting_pods,
    places,
    usable_by_gang,
)
from megatron_operator.lifecycle.desired import has_begun
from megatron_operator.lifecycle.elastic import possible_counts
from megatron_operator.lifecycle.elastic_status import update_elastic_capacity
from megatron_operator.lifecycle.growths import Growths
from megatron_operator.lifecycle.node_evidence import to_avoid
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.observation import Capacity, Elastic, ElasticCapacity, Limits
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.topology_domains import required_keys, too_small
from megatron_operator.manifests import kueue
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.node_avoidance import avoiding, avoiding_domains

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    decided: int
    """How many growths had been decided on."""
    leaving: frozenset[str]
    """UIDs of the run's pods on places that it gives up if it takes what was found."""


class CapacityFinder:
    """Finds capacity for runs that wait for it or were shrunk.

    `allowed` is whether the operator may read nodes and all pods; `caches` have all recipes, jobs and pods.
    `devices`: those that claims need besides the nodes' resources.
    """

    def __init__(
        self,
        api: ApiClient,
        planning: Planning,
        watch: NodeWatch | None = None,
        caches: Caches | None = None,
        devices: DeviceReader | None = None,
        *,
        allowed: bool,
    ) -> None:
        self._planning = planning
        self._allowed = allowed
        self._cluster = ClusterReader(api, devices)
        self._fits: dict[RecipeKey, tuple[tuple[object, ...], int | None]] = {}
        self._again: dict[RecipeKey, tuple[tuple[object, ...], bool]] = {}
        self._watch = watch
        self._devices = devices
        self._room = RoomFinder(watch, devices)
        self._growths = Growths()
        self._inherited = InheritedRuns(caches)
        self._found: dict[RecipeKey, _Found] = {}

    def forget(self, key: RecipeKey) -> None:
        """Drop what is cached of a run."""
        self._fits.pop(key, None)
        self._again.pop(key, None)
        self._room.forget(key)
        self._growths.forget(key)
        self._found.pop(key, None)

    def give_up_places(self, key: RecipeKey) -> None:
        """Let others have the places that a run was to grow into or move to, and has not taken."""
        self._growths.forget(key)
        self._room.give_up_places(key)

    def grow(self, status: StatusBuilder, snapshot: RunSnapshot, count: int) -> bool:
        """Reserve places for `count` accelerators, so that no other run is given them.

        They are reserved until the list of all pods has the new ones. False if another run has been given
        places since this run's capacity was found, or before the operator started and has not its new pods.
        """
        if self._waits_for_inherited(status):
            return False
        found = self._found.get(status.key)
        if found is None or found.decided != self._growths.decided:
            return False
        template, pods = _template_anywhere(snapshot.existing_job), -(-count // snapshot.per_node)
        self._growths.add(status.key, template, pods, status.now, found.leaving)
        return True

    def move(self, status: StatusBuilder, pods: int) -> bool:
        """Reserve places for `pods` pods that move, so that no other run moves into them.

        False as for `grow`, and if the run's room was found too long ago.
        """
        if self._waits_for_inherited(status):
            return False
        return self._room.move(status.key, pods, status.now)

    async def _find_inherited(self, now: float) -> None:
        """Find the runs that this process inherits, once; a list from before may lack their new pods."""
        if await self._inherited.find(now):
            self._cluster.expire()

    def _waits_for_inherited(self, status: StatusBuilder) -> bool:
        """Whether the run waits for others that were on their way when this process began."""
        waits = self._inherited.others(status.key)
        if self._inherited.arrived(status.now):
            # What was found free before may be theirs.
            self._cluster.expire()
            self._room.forget_answers()
        return waits

    async def find(
        self, status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, maintenance: Maintenance
    ) -> Capacity:
        """The run's capacity; records in the status which larger count is free, and since when.

        `maintenance`: what announces that a node will go.
        """
        self._room.follow(maintenance)
        capacity = await self._find(status, snapshot, limits, maintenance)
        if self._room.arrived(status, snapshot):
            self._cluster.expire()
        if not self._allowed or not self._room.concerns(status, snapshot):
            return capacity
        if (known := self._room.known(status, snapshot)) is not None:
            return replace(capacity, room=known)
        await self._find_inherited(status.now)
        cluster = await self._cluster.read(snapshot.placed_on)
        growing = self._growths.of_others(status.key, cluster, status.now)
        template = _template(avoiding(snapshot.existing_job, status.recovery.nodes_avoided))
        room = await self._room.find(status, snapshot, cluster, template, growing, maintenance)
        return replace(capacity, room=room)

    async def without_small_domains(self, run: RecipeKey, job: Object) -> Object:
        """The job without the topology domains in which only some of its pods have room, if others have all.

        The scheduler places pods one by one, so the first pod of a gang decides on its domain. Pods of an
        earlier job of the run count as gone. The job as it is where the pods need not share a domain, where
        Kueue chooses it, later, or where nodes may not be read.
        """
        template = _template(job)
        keys = required_keys(template["spec"])
        if not keys or kueue.chooses_domain(template) or not self._allowed:
            return job
        cluster = await self._cluster.read()
        own = cluster.bound.get((run.namespace, run.name), ())
        fits = await asyncio.to_thread(fitting_pods, cluster, template, own)
        return avoiding_domains(job, keys[0], too_small(cluster.nodes, keys, fits, backend_of(job).size(job)))

    async def _find(
        self, status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, maintenance: Maintenance
    ) -> Capacity:
        recovery = status.recovery
        waiting = recovery.waiting_since is not None
        counted = self._counts_devices(snapshot)
        resizable = counted and limits.elastic is not None and (waiting or recovery.elastic is not None)
        releasable = waiting and bool(recovery.nodes_avoided)
        bad = to_avoid(recovery, limits.avoid_after)
        bound = counted and waiting and _needs_one_domain(snapshot)
        if not (resizable or releasable or bad or bound):
            return Capacity()
        if not self._allowed:
            return await self._without_permission(status, snapshot, limits, waiting=waiting)
        await self._find_inherited(status.now)
        placed = {name for pod in snapshot.active_pods if (name := node_of(pod)) is not None}
        cluster = await self._cluster.read(placed.union(bad))
        own = {pod["metadata"]["uid"] for pod in snapshot.pods}
        template = _template_anywhere(avoiding(snapshot.existing_job, recovery.nodes_avoided))
        decided = self._growths.decided
        fitting = await self._fitting(status.key, snapshot, cluster, template)
        if bound:
            best = usable_by_gang(cluster, template, fitting)
            if await self._in_another_domain(status, snapshot, cluster, template, fitting, best):
                self._found[status.key] = _Found(decided, _leaving(status.key, snapshot, cluster, best))
                return Capacity(in_another_domain=True)
        if resizable and not waiting and self._watch is not None:
            # A run that grows onto a node that will go would soon have to leave it.
            going = self._watch.announcing(maintenance, status.now, snapshot.longest_grace).keys() - placed
            fitting = {name: count for name, count in fitting.items() if name not in going}
        # Pods that have a node keep those that wait in their topology domain; to grow, all get others.
        fitting = usable_by_gang(cluster, template, fitting, placed if waiting else ())
        self._found[status.key] = _Found(decided, _leaving(status.key, snapshot, cluster, fitting))
        fits = sum(fitting.values())
        if resizable and not waiting and fits > snapshot.size:
            # To grow, the run gives up all of its nodes, and those who wait would be bound first.
            growing = self._growths.of_others(status.key, cluster, status.now)
            claimed = await asyncio.to_thread(
                claimed_by_others, cluster, template, fitting, own, status.now, growing
            )
            fits = max(snapshot.size, fits - claimed - self._room.claimed(status.key, status.now))
        elastic = await self._elastic(status, snapshot, limits, fits) if resizable else None
        if not (releasable or bad):
            return Capacity(elastic)
        anywhere = _template(avoiding(snapshot.existing_job, ()))
        room = await asyncio.to_thread(places, cluster, anywhere)
        # Pods of the gang that stay keep those that leave a bad node in their topology domain.
        room = usable_by_gang(cluster, anywhere, room, placed)
        if not releasable:
            return Capacity(elastic, places=room)
        usable = (await self._fitting(status.key, snapshot, cluster, anywhere)).keys()
        return Capacity(elastic, frozenset(recovery.nodes_avoided) & usable, room)

    def _counts_devices(self, snapshot: RunSnapshot) -> bool:
        """Whether free devices can be counted, if the run's pods claim some."""
        return self._devices is None or self._devices.can_count(snapshot.pods)

    async def _fitting(
        self, run: RecipeKey, snapshot: RunSnapshot, cluster: ClusterUsage, template: Object
    ) -> Mapping[str, int]:
        """Number of pods made from `template` that fit on each node, with the run's own counted as free.

        By its resources, and by devices such as the run's pods claim, where they can be counted. Raises
        ApiError.
        """
        own = {pod["metadata"]["uid"] for pod in snapshot.pods}
        # In a thread: ten thousand nodes take longer than the event loop may be blocked.
        fits = await asyncio.to_thread(fitting_pods, cluster, template, own)
        if self._devices is None or not self._counts_devices(snapshot):
            return fits
        return await self._devices.limited(run, snapshot.pods, fits)

    async def _in_another_domain(
        self,
        status: StatusBuilder,
        snapshot: RunSnapshot,
        cluster: ClusterUsage,
        template: Object,
        fitting: Mapping[str, int],
        best: Mapping[str, int],
    ) -> bool:
        """Whether all pods have room in a topology domain, but not in one that they can use in this job.

        They can use that of the pods that are placed, or, while none is, those that the job does not avoid.
        `fitting`: number of pods that fit on each node, with the run's own counted as free; `best`: those of
        the domain with the most room.
        """
        placed = snapshot.placed_on
        if sum(best.values()) < snapshot.size:
            return False
        own = {pod["metadata"]["uid"] for pod in snapshot.pods}
        of_job = _template(avoiding(snapshot.existing_job, status.recovery.nodes_avoided))
        permitted = await asyncio.to_thread(fitting_pods, cluster, of_job, own)
        usable = {name: count for name, count in fitting.items() if name in permitted}
        if sum(usable_by_gang(cluster, template, usable, placed).values()) >= snapshot.size:
            return False
        growing = self._growths.of_others(status.key, cluster, status.now)
        claimed = await asyncio.to_thread(
            claimed_by_others, cluster, template, best, own, status.now, growing
        )
        claimed += self._room.claimed(status.key, status.now)
        return sum(best.values()) - claimed >= snapshot.size

    async def _without_permission(
        self, status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, *, waiting: bool
    ) -> Capacity:
        """Count what the run already holds as its capacity, and all avoided nodes as usable."""
        if not waiting:
            return Capacity()
        bound = sum(node_of(pod) is not None for pod in snapshot.active_pods)
        elastic = await self._elastic(status, snapshot, limits, bound)
        return Capacity(elastic, frozenset(status.recovery.nodes_avoided))

    async def _elastic(
        self, status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, pods: int
    ) -> ElasticCapacity | None:
        """The capacity of an elastic run for which `pods` pods fit."""
        if limits.elastic is None:
            return None
        try:
            spec = parse_spec(status.spec)
        except InvalidRecipeError:
            return None
        available = pods * snapshot.per_node
        try:
            fits = await self._largest_count(status, spec, limits.elastic, available, snapshot.per_node)
        except InvalidRecipeError as error:
            # Of platform or catalog. What nodes may be used does not depend on it.
            log.warning("%s: the run keeps its size: %s", status.key, error)
            return None
        return update_elastic_capacity(status, spec.accelerator.count, snapshot.accelerators, fits)

    async def can_be_created_again(self, status: StatusBuilder, snapshot: RunSnapshot) -> bool:
        """Whether the run could continue in a new job of its size: not after an edit that is refused."""
        question = self._state_of_planning(status), snapshot.accelerators
        if status.key not in self._again or self._again[status.key][0] != question:
            try:
                answer = await self._planning.can_continue_on(status, snapshot.accelerators)
            except InvalidRecipeError as error:
                log.warning("%s: the run keeps its job: %s", status.key, error)
                answer = False
            self._again[status.key] = question, answer
        return self._again[status.key][1]

    def _state_of_planning(self, status: StatusBuilder) -> tuple[object, ...]:
        """What the planner's answers for a run depend on, besides its size."""
        recipe = status.uid, status.generation, self._planning.revision
        return *recipe, has_begun(status), status.checkpoint.contract

    async def _largest_count(
        self,
        status: StatusBuilder,
        spec: MegatronRecipeSpec,
        elastic: Elastic,
        available: int,
        per_node: int,
    ) -> int | None:
        """The planner's answer is cached: it takes long, and what it depends on changes seldom."""
        requested, plan = spec.accelerator.count, status.current.plan
        size = min(available, requested), plan and plan.world_size
        question = self._state_of_planning(status), size
        if status.key not in self._fits or self._fits[status.key][0] != question:
            counts = possible_counts(
                available, requested=requested, min_count=elastic.min_count, per_node=per_node
            )
            answer = None
            for count in counts:
                if await self._planning.can_continue_on(status, count):
                    answer = count
                    break
            self._fits[status.key] = question, answer
        return self._fits[status.key][1]


def _template(job: Object) -> Object:
    return backend_of(job).templates(job)[-1]


def _leaving(
    run: RecipeKey, snapshot: RunSnapshot, cluster: ClusterUsage, nodes: Collection[str]
) -> frozenset[str]:
    """UIDs of the run's pods, also of those that only `cluster` has, that are on none of these nodes."""
    known = {pod["metadata"]["uid"]: node_of(pod) for pod in snapshot.pods}
    staying = {uid for uid, node in known.items() if node in nodes}
    return cluster.pods_of((run.namespace, run.name)).union(known) - staying


def _needs_one_domain(snapshot: RunSnapshot) -> bool:
    """Whether the run's pods must share a topology domain that is not chosen by Kueue."""
    return bool(required_keys(_template(snapshot.existing_job)["spec"])) and snapshot.queue is None


def _template_anywhere(job: Object) -> Object:
    """The template of a job that is created again, with the choice of all topology domains."""
    template = _template(job)
    keys = required_keys(template["spec"])
    return _template(avoiding_domains(job, keys[0], ())) if keys else template

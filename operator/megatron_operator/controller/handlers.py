"""Events of the watches, kopf's and own ones: each adds the recipe that it concerns to the work queue."""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import Any, Final

import kopf

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import described
from megatron_operator.api.labels import GROUP, LABEL_RECIPE, PLURAL
from megatron_operator.controller.api_client import PAGE, ApiClient
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.cache_check import CacheCheck
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.children import Children
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.controller.device_watch import DeviceWatch
from megatron_operator.controller.kopf_storage import NoDiffBase, NoProgress
from megatron_operator.controller.loop_lag import measure_loop_lag
from megatron_operator.controller.node_checker import NodeChecker
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.controller.object_cache import Caches, ObjectCache
from megatron_operator.controller.plan_workers import PlanWorkers
from megatron_operator.controller.planning import Planning
from megatron_operator.controller.policy_reconciler import PolicyReconciler
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.recipe_planner import RecipePlanner
from megatron_operator.controller.reconciler import Reconciler
from megatron_operator.controller.run_watches import RunWatches
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.controller.stages import Stages
from megatron_operator.controller.supervisor import Supervisor
from megatron_operator.controller.traces import TraceSender
from megatron_operator.controller.usage_recorder import UsageRecorder
from megatron_operator.controller.workqueue import COALESCE, NORMAL, URGENT, WorkQueue
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.lifecycle.undisturbed import is_new
from megatron_operator.manifests.job_backends import backend_of

log = logging.getLogger(__name__)

CONFIG_INTERVAL: Final = 5.0
"""Seconds between two checks of the operator's ConfigMaps."""
WAITING_PHASES: Final = frozenset({Phase.REFUSED, Phase.PENDING, Phase.QUEUED})
"""Phases in which a change of platform or catalog may help a recipe."""
START_COALESCE: Final = 1.0
"""Seconds for which events of the objects of a run that starts are collected: each pod causes several."""
HAS_RECIPE_LABEL: Final = {LABEL_RECIPE: kopf.PRESENT}
LAST_RECONCILES: Final = 5.0
"""Seconds for reconciles that run when the operator is stopped."""


class Operator:
    """Everything that acts on recipes; it lives as long as the process is the leader."""

    def __init__(self, settings: Settings, api: ApiClient, config: ConfigSource) -> None:
        self.settings = settings
        self.api = api
        self.config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[RecipeKey, tuple[str, int]] = {}
        self._starting: set[RecipeKey] = set()

    def start(self) -> None:
        """Start all tasks."""
        settings = self.settings
        self.poller = ProgressPoller(
            settings, lambda key, patience: self.queue.add(key, 0, patience), self.api.clock.now
        )
        watch = NodeWatch(self.api, self._missed) if settings.node_discovery else None
        device_watch = DeviceWatch(self.api, self.config, self._missed) if settings.node_discovery else None
        devices = None if device_watch is None else DeviceReader(self.api, device_watch)
        nodes = NodeReader(self.api, watch, allowed=settings.node_discovery)
        self.caches = Caches(settings.job_kinds)
        self._watches = RunWatches(
            self.api, settings.watch_namespaces, self.caches, self.job_event, self.pod_event, self._lost
        )
        self._cache_check = CacheCheck(self.api, self.caches, settings.watch_namespaces, self._missed)
        self.usage = UsageRecorder(self.api, self.caches, settings)
        self.snapshots = SnapshotReader(self.api, nodes, self.poller, self.caches, watch, devices)
        self._workers = PlanWorkers()
        self._planning = Planning(self.config, self._workers, lambda key: self.queue.add(key, 0, URGENT))
        self._planner = asyncio.create_task(self._planning.start(), name="planner")
        capacity = CapacityFinder(
            self.api, self._planning, watch, self.caches, devices, allowed=settings.node_discovery
        )
        cordoner = Cordoner(self.api, self.config, namespaced=bool(settings.watch_namespaces))
        checker = NodeChecker(self.api, self.config, settings.namespace)
        policies = PolicyReconciler(self.api, self.config, settings.watch_namespaces)
        self._traces = TraceSender.from_environment()
        reconciler = Reconciler(
            self.api,
            RecipePlanner(self._planning, self.config),
            self.snapshots,
            Children(self.api, capacity, self.caches.first_runs),
            Stages(self.api, nodes, self.poller, self.snapshots.workloads, self.snapshots.events),
            Supervisor(self.poller, capacity, cordoner),
            self.poller,
            self.caches,
            self._traces,
        )
        self.queue = WorkQueue(reconciler, settings.workers, self._is_start)
        self._tasks = [
            asyncio.create_task(self.poller.run(), name="progress"),
            asyncio.create_task(self._watch_config(), name="config"),
            asyncio.create_task(self._work(), name="caches"),
            asyncio.create_task(self._watches.run(), name="watches"),
            asyncio.create_task(cordoner.run(), name="cordoned-nodes"),
            asyncio.create_task(policies.run(), name="network-policies"),
            *([] if watch is None else [asyncio.create_task(self._watch_nodes(watch), name="nodes")]),
            *([] if device_watch is None else [asyncio.create_task(device_watch.run(), name="devices")]),
            *([] if settings.watch_namespaces else [asyncio.create_task(checker.run(), name="node-checks")]),
            asyncio.create_task(self.usage.run(), name="usage"),
            asyncio.create_task(measure_loop_lag(), name="loop-lag"),
        ]
        for task in self._tasks:
            task.add_done_callback(log_end)

    async def _watch_nodes(self, watch: NodeWatch) -> None:
        """Watch nodes; their first list has what the platform names, so that it is not repeated."""
        try:
            watch.follow_start_times((await self.config.maintenance()).start_times)
        except Exception as error:  # The first reconcile reads the platform again.
            log.warning("cannot read platform and catalog: %s", described(error))
        await watch.run()

    async def _work(self) -> None:
        """Start the workers once the caches are filled, and compare the caches with lists from then on."""
        await self._cache_check.first_lists(self._watches.list_pods)
        self._watches.begin_pods()
        self.queue.start()
        self.usage.caches_are_complete()
        await self._cache_check.run()

    def _is_start(self, key: RecipeKey) -> bool:
        """Whether a recipe has no status yet, and its name had no run whose pods would have to be listed."""
        recipe = self.caches.recipes.get(*key)
        return recipe is not None and is_new(recipe) and self.caches.first_runs.is_first(key)

    def _missed(self, key: RecipeKey) -> None:
        self.queue.add(key)

    def _lost(self, key: RecipeKey) -> None:
        self.queue.add(key, patience=URGENT)

    async def stop(self) -> None:
        """Finish the reconciles that run, and stop all tasks."""
        tasks = [*self._tasks, self._planner]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.queue.stop(LAST_RECONCILES)
        await self.usage.stop()
        await self._workers.stop()

    async def send_last_traces(self) -> None:
        """Send the traces that are queued; after `stop`."""
        if self._traces is not None:
            await self._traces.stop()

    def alive(self) -> bool:
        """Whether all tasks run."""
        return self.queue.alive() and all(not task.done() for task in self._tasks)

    def recipe_event(self, body: dict[str, Any], gone: bool) -> None:
        """A recipe changed. A known generation is ignored: the operator's own writes cause such events."""
        key = RecipeKey(body["metadata"]["namespace"], body["metadata"]["name"])
        _update(self.caches.recipes, body, gone=gone)
        if gone:
            self.usage.deleted(body)
            self._seen.pop(key, None)
            self._starting.discard(key)
            self.queue.add(key, patience=URGENT)
            return
        if (body.get("status") or {}).get("phase") == Phase.STARTING:
            self._starting.add(key)
        else:
            self._starting.discard(key)
        version = (body["metadata"]["uid"], body["metadata"]["generation"])
        if self._seen.get(key) != version:
            self._seen[key] = version
            self._planning.recipe_changed(key)
            observed = (body.get("status") or {}).get("observedGeneration")
            self.queue.add(key, 0, NORMAL if observed == version[1] else URGENT)

    def child_event(self, body: dict[str, Any], *, lost: bool = False) -> None:
        """An object of a recipe changed. `lost`: the run may have to recover from it."""
        key = _recipe_of(body)
        delay = START_COALESCE if key in self._starting else COALESCE
        self.queue.add(key, delay, URGENT if lost else NORMAL)

    def job_event(self, body: dict[str, Any], gone: bool) -> None:
        """A training job of a recipe changed."""
        _update(self.caches.jobs[backend_of(body).KIND], body, gone=gone)
        self.child_event(body, lost=gone)

    def pod_event(self, body: dict[str, Any], gone: bool) -> None:
        """A pod of a recipe changed."""
        _update(self.caches.pods, body, gone=gone)
        self.snapshots.pod_ends.add(_recipe_of(body), body)
        failed = (body.get("status") or {}).get("phase") == "Failed"
        self.child_event(body, lost=gone or failed or "deletionTimestamp" in body["metadata"])

    async def _watch_config(self) -> None:
        """Reconcile recipes that wait or were refused after the platform or the catalog has changed."""
        seen = 0
        while True:
            await asyncio.sleep(CONFIG_INTERVAL)
            try:
                await self.config.refresh()
                # Others may find another change while recipes are listed.
                if (revision := self.config.revision) != seen:
                    await self._add_waiting()
                    seen = revision
            except Exception as error:
                log.warning("cannot read platform and catalog: %s", described(error))

    async def _add_waiting(self) -> None:
        for namespace in self.settings.watch_namespaces or (None,):
            for recipe in await self.api.find(RECIPES, namespace):
                if _waits_for_config(recipe):
                    self.queue.add(RecipeKey(recipe["metadata"]["namespace"], recipe["metadata"]["name"]))


def _waits_for_config(recipe: dict[str, Any]) -> bool:
    """Whether a change of platform or catalog may help: also a running recipe whose edit was refused."""
    status = recipe.get("status") or {}
    refused = any(
        (c.get("type"), c.get("status")) == (Condition.PLANNED, "False")
        for c in status.get("conditions") or []
    )
    return refused or status.get("phase") in WAITING_PHASES


def _update(cache: ObjectCache, body: dict[str, Any], *, gone: bool) -> None:
    if gone:
        cache.remove(body)
    else:
        cache.put(body)


def _recipe_of(body: dict[str, Any]) -> RecipeKey:
    metadata = body["metadata"]
    return RecipeKey(metadata["namespace"], metadata["labels"][LABEL_RECIPE])


def log_end(task: asyncio.Task[None]) -> None:
    """Log that a permanent task has ended; the liveness probe fails from now on."""
    if not task.cancelled():
        log.error("task %s has ended", task.get_name(), exc_info=task.exception())


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """Register the operator's handlers with kopf."""

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    @kopf.on.event(GROUP, PLURAL, registry=registry)
    async def recipe(body: kopf.Body, type: str | None, **_: Any) -> None:
        operator.recipe_event(dict(body), type == "DELETED")

    @kopf.on.event("batch", "jobs", registry=registry, labels=HAS_RECIPE_LABEL)
    async def prepare_job(body: kopf.Body, **_: Any) -> None:
        operator.child_event(dict(body))


class Backoffs:
    """Seconds between attempts, without end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


def kopf_settings(*, clusterwide: bool) -> kopf.OperatorSettings:
    """Settings with which kopf watches only: it writes neither annotations nor finalizers nor Events."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    # Without cluster-wide permissions, kopf cannot watch for new resource kinds.
    settings.scanning.disabled = not clusterwide
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    # The first list of a fleet would be in memory as a whole.
    settings.watching.chunk_size = PAGE
    settings.networking.request_timeout = 30
    # By default kopf gives up after a minute and exits; an API server may be unavailable for longer.
    settings.networking.error_backoffs = Backoffs()
    settings.watching.label_selectors["jobs"] = LABEL_RECIPE
    return settings

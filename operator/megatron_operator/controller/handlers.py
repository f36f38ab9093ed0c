"""What kopf watches: every event says only which recipe to look at."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import Any, Final

import kopf

from megatron_operator.api.conditions import Phase
from megatron_operator.api.labels import GROUP, LABEL_RECIPE, PLURAL
from megatron_operator.controller.api_client import RECIPES, Cluster
from megatron_operator.controller.capacity_finder import RoomFinder
from megatron_operator.controller.config_source import Sources
from megatron_operator.controller.node_reader import Nodes
from megatron_operator.controller.progress_poller import Poller
from megatron_operator.controller.reconciler import Reconciler
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.webhook import Webhook
from megatron_operator.controller.workqueue import Key, WorkQueue
from megatron_operator.manifests import pytorchjob

log = logging.getLogger(__name__)

SOURCES_INTERVAL: Final = 5.0
"""Seconds between two looks at the operator's ConfigMaps."""
WAITING_PHASES: Final = frozenset({Phase.REFUSED, Phase.PENDING})
OF_A_RECIPE: Final = {LABEL_RECIPE: kopf.PRESENT}


class Operator:
    """Everything that lives as long as the process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[Key, tuple[str, int]] = {}

    async def start(self) -> None:
        self.cluster = await Cluster.connect()
        self.sources = Sources(self.cluster, self.settings)
        self.poller = Poller(self.settings, lambda key: self.queue.add(key, 0), self.cluster.clock.now)
        allowed = self.settings.node_discovery
        nodes = Nodes(self.cluster, allowed=allowed)
        rooms = RoomFinder(self.cluster, self.sources, allowed=allowed)
        self.reconciler = Reconciler(self.cluster, nodes, self.sources, rooms, self.poller)
        self.queue = WorkQueue(self.reconciler, self.settings.workers)
        self.queue.start()
        self._tasks = [
            asyncio.create_task(self.poller.run(), name="progress"),
            asyncio.create_task(self._follow_sources(), name="sources"),
        ]
        if self.settings.webhook_port:
            webhook = Webhook(self.sources, self.settings)
            self._tasks.append(asyncio.create_task(webhook.run(), name="webhook"))
        for task in self._tasks:
            task.add_done_callback(_tell_end)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.queue.stop()
        await self.cluster.close()

    def alive(self) -> bool:
        return self.queue.alive() and all(not task.done() for task in self._tasks)

    def recipe_event(self, body: dict[str, Any], gone: bool) -> None:
        """A spec that was seen before is no news: the operator's own status writes come back as events."""
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"])
        if gone:
            self._seen.pop(key, None)
            self.queue.add(key)
            return
        version = (body["metadata"]["uid"], body["metadata"]["generation"])
        if self._seen.get(key) != version:
            self._seen[key] = version
            self.queue.add(key, 0)

    def part_event(self, body: dict[str, Any]) -> None:
        """An object of a recipe changed."""
        metadata = body["metadata"]
        self.queue.add(Key(metadata["namespace"], metadata["labels"][LABEL_RECIPE]))

    def pod_event(self, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        self.reconciler.note_pod(Key(metadata["namespace"], metadata["labels"][LABEL_RECIPE]), body)
        self.part_event(body)

    async def _follow_sources(self) -> None:
        """When the platform or the catalog changed, recipes that wait or were refused have another chance."""
        seen = 0
        while True:
            await asyncio.sleep(SOURCES_INTERVAL)
            try:
                await self.sources.refresh()
                if self.sources.revision != seen:
                    await self._look_at_waiting()
                    seen = self.sources.revision
            except Exception as error:
                log.warning("platform and catalog could not be read: %s", error or repr(error))

    async def _look_at_waiting(self) -> None:
        for namespace in self.settings.watch_namespaces or (None,):
            for recipe in await self.cluster.find(RECIPES, namespace):
                if (recipe.get("status") or {}).get("phase") in WAITING_PHASES:
                    self.queue.add(Key(recipe["metadata"]["namespace"], recipe["metadata"]["name"]))


def _tell_end(task: asyncio.Task[None]) -> None:
    """A task that should run for ever has ended; the liveness probe fails from now on."""
    if not task.cancelled():
        log.error("task %s has ended", task.get_name(), exc_info=task.exception())


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """Bind the operator to kopf."""

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, everywhere=not operator.settings.watch_namespaces)
        await operator.start()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        with contextlib.suppress(AttributeError):
            await operator.stop()

    @kopf.on.probe(registry=registry, id="workers")
    async def probe(**_: Any) -> str:
        if not operator.alive():
            raise RuntimeError("a task of the operator has ended")
        return "alive"

    @kopf.on.event(GROUP, PLURAL, registry=registry)
    async def recipe(body: kopf.Body, type: str | None, **_: Any) -> None:
        operator.recipe_event(dict(body), type == "DELETED")

    @kopf.on.event(pytorchjob.GROUP, pytorchjob.PLURAL, registry=registry, labels=OF_A_RECIPE)
    async def training_job(body: kopf.Body, **_: Any) -> None:
        operator.part_event(dict(body))

    @kopf.on.event("batch", "jobs", registry=registry, labels=OF_A_RECIPE)
    async def prepare_job(body: kopf.Body, **_: Any) -> None:
        operator.part_event(dict(body))

    @kopf.on.event("", "pods", registry=registry, labels=OF_A_RECIPE)
    async def pod(body: kopf.Body, **_: Any) -> None:
        operator.pod_event(dict(body))


class Backoffs:
    """Seconds between attempts, without end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


def configure(settings: kopf.OperatorSettings, *, everywhere: bool) -> None:
    """kopf only watches here: it writes nothing, neither annotations nor finalizers."""
    settings.posting.enabled = False
    # Without rights on the whole cluster new kinds of objects cannot be noticed.
    settings.scanning.disabled = not everywhere
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    # kopf would give up after a minute and end the process; an API server may be away for longer.
    settings.networking.error_backoffs = Backoffs()
    for plural in ("pods", "jobs", pytorchjob.PLURAL):
        settings.watching.label_selectors[plural] = LABEL_RECIPE

"""Compares the caches with lists of the API server: a watch that is silent or broken raises no error."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_client import EXPECTED_ERRORS, ApiClient, ApiError
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.metrics import STALE_OBJECTS
from megatron_operator.controller.object_cache import Caches, Identity, ObjectCache, identity
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two checks."""
GRACE: Final = 10.0
"""Seconds that a watch may be behind a list."""
FIRST_LISTS: Final = 15.0
"""Seconds for which an operator that has started waits for the watches' first lists."""
SECOND_LIST: Final = 2.0
"""Seconds after which an operator that has started lists again what its watches have not delivered."""
POLL: Final = 0.1
"""Seconds between two checks whether the cache has caught up."""
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Listed:
    """What the API server had of one resource at one moment, and what the cache had just before."""

    cache: ObjectCache
    objects: dict[tuple[str, str], Identity]
    before: dict[tuple[str, str], Identity]

    def behind(self) -> dict[tuple[str, str], RecipeKey]:
        """Objects whose cached state is older than the list, with their recipes."""
        found = {}
        for key, listed in self.objects.items():
            known, old = self.cache.known(*key), self.before.get(key)
            # One that was known and is so no longer was deleted since: the watch has delivered that.
            removed = known is None and old is not None and old.uid == listed.uid
            if not removed and (known is None or known.version < listed.version):
                found[key] = listed.recipe
        for key, old in self.before.items():
            known = self.cache.known(*key)
            if key not in self.objects and known is not None and known.uid == old.uid:
                found[key] = old.recipe
        return found


class CacheCheck:
    """Lists metadata and compares. `reconcile` is called for recipes of which something was missed."""

    def __init__(
        self,
        api: ApiClient,
        caches: Caches,
        namespaces: tuple[str, ...],
        reconcile: Callable[[RecipeKey], None],
    ) -> None:
        self._api = api
        self._caches = caches
        self._namespaces = namespaces
        self._reconcile = reconcile
        self._naming: asyncio.Task[None] | None = None
        """Finds the names that had a run before."""
        for cache in caches.all:
            # A series that begins with its first event has no increase in a query.
            STALE_OBJECTS.labels(cache.resource.plural)

    async def first_lists(self, list_pods: Callable[[], Awaitable[object]]) -> None:
        """Wait until the watches have delivered what exists now, so that a restart needs no other reads.

        `list_pods` begins the first list of pods, and waits for it. Metadata of the others is listed before,
        so that no pod is missed whose job went in between.

        Gives up after FIRST_LISTS: what the caches lack is read from the API server.
        """
        pods = self._caches.pods
        try:
            async with asyncio.timeout(FIRST_LISTS):
                lists = [await self._list(cache) for cache in self._caches.all if cache is not pods]
                # A fleet's pods may take longer to list; until then no name counts as new.
                self._naming = asyncio.create_task(self._know_names(lists, list_pods), name="first-runs")
                await asyncio.shield(self._naming)
                again = time.monotonic() + SECOND_LIST
                while lists := [each for each in lists if each.behind()]:
                    if time.monotonic() >= again:
                        # What was deleted before its watch began is never delivered.
                        lists, again = [await self._list(each.cache) for each in lists], math.inf
                    await asyncio.sleep(POLL)
        except EXPECTED_ERRORS as error:
            log.warning("the caches are not complete yet: %s", described(error))

    async def _know_names(self, lists: list[Listed], list_pods: Callable[[], Awaitable[object]]) -> None:
        await list_pods()
        found = [each for listed in lists for each in listed.objects.values()]
        found += [each for _, each in self._caches.pods.identities()]
        self._caches.first_runs.listed(each.recipe for each in found)

    async def run(self) -> None:
        """Check for as long as the operator acts."""
        while True:
            await asyncio.sleep(INTERVAL)
            for cache in self._caches.all:
                try:
                    await self.check(cache)
                except Exception as error:
                    log.warning("cannot check the cache: %s", described(error))

    async def check(self, cache: ObjectCache, grace: float = GRACE) -> None:
        """Drop what is still behind a list `grace` seconds after it, and reconcile its recipes."""
        listed = await self._list(cache)
        deadline = time.monotonic() + grace
        while listed.behind() and time.monotonic() < deadline:
            await asyncio.sleep(POLL)
        behind = listed.behind()
        if not behind:
            return
        plural = cache.resource.plural
        log.warning("the watch of %s missed %d objects; they are read again", plural, len(behind))
        STALE_OBJECTS.labels(plural).inc(len(behind))
        for key, recipe in behind.items():
            cache.discard(*key)
            self._reconcile(recipe)

    async def _list(self, cache: ObjectCache) -> Listed:
        before = dict(cache.identities())
        objects: dict[tuple[str, str], Identity] = {}
        try:
            for namespace in self._namespaces or (None,):
                objects |= await self._list_namespace(cache, namespace)
        except ApiError as error:
            # The cluster does not know the resource, for example before the training-operator is installed.
            if not error.not_found:
                raise
        return Listed(cache, objects, before)

    async def _list_namespace(
        self, cache: ObjectCache, namespace: str | None
    ) -> dict[tuple[str, str], Identity]:
        is_recipe = cache.resource is RECIPES
        labels = None if is_recipe else LABEL_RECIPE
        found = {}
        async for page in self._api.pages(cache.resource, namespace, labels=labels, accept=METADATA_ONLY):
            for each in page:
                metadata = each["metadata"]
                found[metadata["namespace"], metadata["name"]] = identity(each, is_recipe=is_recipe)
        return found

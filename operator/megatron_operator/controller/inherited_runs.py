"""Runs that an earlier process of the operator gave other places, and whose new pods do not exist yet."""

import asyncio
from collections.abc import Iterable

from megatron_operator.api.labels import LABEL_ROLE
from megatron_operator.controller.object_cache import Caches
from megatron_operator.lifecycle.children import recorded_kind
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.relocation import has_new_pods, is_relocating
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.manifests import object_name
from megatron_operator.manifests.metadata import ROLE_TRAINER


class InheritedRuns:
    """The runs that were on their way when this process began.

    Which places they were given is not recorded. So no other run is given any until their new pods exist: the
    places that these use or wait for count as taken. To create them, a run waits for no other.
    """

    def __init__(self, caches: Caches | None) -> None:
        self._caches = caches
        self._lock = asyncio.Lock()
        self._open: set[RecipeKey] | None = None
        self._until = 0.0
        """When they are no longer waited for, seconds since the epoch."""

    async def find(self, now: float) -> bool:
        """Find them, once, before this process gives any run places; whether it was this time.

        `now` is in seconds since the epoch.
        """
        async with self._lock:
            if self._open is not None:
                return False
            known = () if self._caches is None else self._caches.recipes.identities()
            keys = [each.recipe for _, each in known]
            # In a thread: thousands of recipes take longer than the event loop may be blocked.
            relocating = await asyncio.to_thread(self._relocating, keys, now)
            self._open = self._on_their_way(relocating)
            self._until = now + LONGEST_GROWTH
            return True

    def others(self, run: RecipeKey) -> bool:
        """Whether one but `run` was on its way when `arrived` was called last."""
        return bool((self._open or set()) - {run})

    def arrived(self, now: float) -> bool:
        """Drop those that are no longer on their way; whether there were any."""
        if not self._open:
            return False
        before, self._open = self._open, set()
        if now < self._until:
            self._open = self._on_their_way(self._relocating(before, now))
        return self._open != before

    def _relocating(self, keys: Iterable[RecipeKey], now: float) -> dict[RecipeKey, Object]:
        """The recipes of those of these runs that are relocating."""
        if self._caches is None:
            return {}
        found = ((key, self._caches.recipes.get(*key)) for key in keys)
        return {key: recipe for key, recipe in found if recipe is not None and is_relocating(recipe, now)}

    def _on_their_way(self, relocating: dict[RecipeKey, Object]) -> set[RecipeKey]:
        return {key for key, recipe in relocating.items() if not self._has_new_pods(key, recipe)}

    def _has_new_pods(self, key: RecipeKey, recipe: Object) -> bool:
        """False also where the content of its job or pods is not kept."""
        assert self._caches is not None, "without caches no run is relocating"
        jobs = self._caches.jobs.get(recorded_kind(StatusBuilder.of(dict(recipe), 0.0)))
        job = None if jobs is None else jobs.get(key.namespace, object_name(key.name))
        pods = self._caches.pods.of_recipe(key) or ()
        trainers = [pod for pod in pods if pod["metadata"]["labels"].get(LABEL_ROLE) == ROLE_TRAINER]
        return has_new_pods(recipe, job, trainers)

"""Runs that an earlier process of the operator gave other places, and that are not there yet."""

import asyncio
from collections.abc import Iterable

from megatron_operator.controller.object_cache import ObjectCache
from megatron_operator.lifecycle.growths import LONGEST_GROWTH
from megatron_operator.lifecycle.relocation import is_relocating
from megatron_operator.lifecycle.status_builder import RecipeKey


class InheritedRuns:
    """The runs that were on their way when this process began.

    Which places they were given is not recorded. So no other run is given any until they have theirs.
    """

    def __init__(self, recipes: ObjectCache | None) -> None:
        self._recipes = recipes
        self._lock = asyncio.Lock()
        self._open: set[RecipeKey] | None = None
        self._until = 0.0
        """When they are no longer waited for, seconds since the epoch."""

    async def find(self, now: float) -> None:
        """Find them, once, before this process gives any run places; `now` in seconds since the epoch."""
        async with self._lock:
            if self._open is None:
                known = () if self._recipes is None else self._recipes.identities()
                keys = [each.recipe for _, each in known]
                # In a thread: thousands of recipes take longer than the event loop may be blocked.
                self._open = await asyncio.to_thread(self._relocating, keys, now)
                self._until = now + LONGEST_GROWTH

    def others(self, run: RecipeKey) -> bool:
        """Whether one but `run` was on its way when `arrived` was called last."""
        return bool((self._open or set()) - {run})

    def arrived(self, now: float) -> bool:
        """Drop those that are no longer on their way; whether there were any."""
        if not self._open:
            return False
        before, self._open = self._open, self._relocating(self._open, now) if now < self._until else set()
        return self._open != before

    def _relocating(self, keys: Iterable[RecipeKey], now: float) -> set[RecipeKey]:
        recipes = self._recipes
        if recipes is None:
            return set()
        found = ((key, recipes.get(*key)) for key in keys)
        return {key for key, recipe in found if recipe is not None and is_relocating(recipe, now)}

"""Which names no run has had before, so that no pod of an earlier gang can be left."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.lifecycle.status_builder import RecipeKey

MOST: Final = 50_000
"""Names that are remembered. With more, every name may have had a run."""


class FirstRuns:
    """The names that had a recipe, a job or a pod when this process became the leader, or a job since.

    Only the leader creates jobs. So a name that was in none of its first lists, and for which it has created
    none since, has no pod of an earlier gang. That does not depend on how far the watches have come.
    """

    def __init__(self) -> None:
        self._listed = False
        self._names: set[RecipeKey] = set()

    def listed(self, names: Iterable[RecipeKey]) -> None:
        """The names of everything that exists, once all of it was listed."""
        self._names.update(names)
        self._listed = True

    def is_first(self, key: RecipeKey) -> bool:
        """Whether no run of this name has had a job."""
        return self._listed and key not in self._names

    def begin(self, key: RecipeKey) -> None:
        """A job of this name is about to be created."""
        self._names.add(key)
        if len(self._names) > MOST:
            self._listed = False
            self._names.clear()

"""Runs that are growing: the places of the pods that they are about to have are no longer free for others."""

from dataclasses import dataclass
from typing import Final

from megatron_operator.lifecycle.capacity import ClusterUsage, WaitingGang, missing_gang
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

LONGEST_GROWTH: Final = 1800.0
"""Seconds for which a growth is expected to come: its pods end first, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Growth:
    template: Object
    pods: int
    decided: float
    """Seconds since the epoch."""
    leaving: frozenset[str]
    """UIDs of pods that the run had then, on places that it gives up."""


class Growths:
    """The growths and changes of the topology domain that one operator has decided on.

    They are not stored: after a change of the leader, runs whose status has an unfinished one are waited for
    until they have their new pods (`relocation`).
    """

    def __init__(self) -> None:
        self._growths: dict[RecipeKey, _Growth] = {}
        self._decided = 0

    @property
    def decided(self) -> int:
        """Number of growths so far: with the same number the places free for a run are the same."""
        return self._decided

    def add(
        self,
        run: RecipeKey,
        template: Object,
        pods: int,
        now: float,
        leaving: frozenset[str] = frozenset(),
    ) -> None:
        """`run` will have `pods` pods of `template`; `now` is in seconds since the epoch.

        `leaving`: UIDs of its present pods on places that it gives up, so that they are none of these.
        """
        self._growths[run] = _Growth(template, pods, now, leaving)
        self._decided += 1

    def forget(self, run: RecipeKey) -> None:
        """No longer expect that `run` grows."""
        self._growths.pop(run, None)

    def of_others(self, run: RecipeKey, cluster: ClusterUsage, now: float) -> list[WaitingGang]:
        """The pods that other runs will have and `cluster` has not; `now` in seconds since the epoch."""
        found = []
        for key, growth in list(self._growths.items()):
            gang = missing_gang(cluster, key, growth.template, growth.pods, now, growth.leaving)
            if gang is None or now - growth.decided >= LONGEST_GROWTH:
                del self._growths[key]
            elif key != run:
                found.append(gang)
        return found

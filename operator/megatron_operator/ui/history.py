"""What is kept of runs beside their newest state: for as long as the page runs, or in an archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.points import Point, Samples

Object = dict[str, Any]
MAX_SHOWN: Final = 200
"""Incidents that a page shows at most, the newest."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What is known of a run's past; each in order of time."""

    points: tuple[Point, ...] = ()
    """Of its statuses, in order of iterations."""
    incidents: tuple[Object, ...] = ()
    """As in status.recovery.history, which has the newest 20 only."""
    conditions: tuple[Object, ...] = ()
    """As in status.conditions, which has the last change of each only."""
    phases: tuple[tuple[str, str], ...] = ()
    """RFC 3339 time and phase of each change."""
    checkpoints: tuple[tuple[int, str | None], ...] = ()
    """Iteration and time, RFC 3339, of the complete checkpoints that were reported."""
    share: float = 1.0
    """Share of what is recorded that `points` are of, 0 to 1."""


class Recorder(Protocol):
    """Takes what the watch of the recipes sees."""

    def observe(self, recipe: Object) -> None:
        """A recipe as it is now."""

    def delete(self, recipe: Object) -> None:
        """A recipe was deleted."""

    def complete(self, namespace: str | None, recipes: Sequence[Object]) -> None:
        """These are all recipes of a namespace, or of all (None)."""

    async def history(self, recipe: Object) -> RunHistory:
        """What is known of a run's past."""


class MemoryRecorder:
    """Keeps the points of the recipes that exist."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], tuple[str, Samples]] = {}
        """UID of the recipe with its samples."""

    def observe(self, recipe: Object) -> None:
        """Note its progress."""
        if not (recipe.get("status") or {}).get("progress"):
            return
        key, uid = key_of(recipe), str(recipe["metadata"].get("uid"))
        known = self._samples.get(key)
        if known is None or known[0] != uid:
            known = self._samples[key] = (uid, Samples())
        known[1].add(read_status(recipe["status"])[0])

    def delete(self, recipe: Object) -> None:
        """Forget it."""
        self._samples.pop(key_of(recipe), None)

    def complete(self, namespace: str | None, recipes: Sequence[Object]) -> None:
        """Forget those that are gone."""
        kept = {key_of(each) for each in recipes}
        for key in [each for each in self._samples if namespace in (None, each[0]) and each not in kept]:
            del self._samples[key]

    async def history(self, recipe: Object) -> RunHistory:
        """The points since the watch began."""
        uid, samples = self._samples.get(key_of(recipe), ("", Samples()))
        return RunHistory(tuple(samples.points()) if uid == recipe["metadata"].get("uid") else ())


def with_history(recipe: Object, history: RunHistory) -> Object:
    """The recipe whose status also has the incidents and changes of conditions that only its history has."""
    status = recipe.get("status") or {}
    recovery = status.get("recovery") or {}
    incidents = _union(history.incidents, recovery.get("history") or [], ("number",))
    conditions = _union(
        history.conditions, status.get("conditions") or [], ("type", "lastTransitionTime", "status", "reason")
    )
    if not incidents and not conditions:
        return recipe
    changed = status | {"conditions": conditions}
    if incidents:
        changed["recovery"] = recovery | {"history": incidents[-MAX_SHOWN:]}
    return recipe | {"status": changed}


def _union(known: Sequence[Object], newest: Sequence[Object], names: Sequence[str]) -> list[Object]:
    """Both, those that agree in these fields once, as in `newest`."""
    found = {tuple(str(each.get(name)) for name in names): each for each in (*known, *newest)}
    return list(found.values())


def key_of(recipe: Object) -> tuple[str, str]:
    """Namespace and name."""
    metadata = recipe["metadata"]
    return str(metadata["namespace"]), str(metadata["name"])

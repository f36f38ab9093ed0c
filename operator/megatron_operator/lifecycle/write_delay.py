"""How long the write of a status can wait: progress alone is written at most once in `INTERVAL`.

What happens to a run (phase, conditions, checkpoint, incidents, warnings) is written at once, with the
progress of that moment.
"""

from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.api.labels import FIELD_MANAGER
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import MegatronRecipeStatus, Progress
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.status_builder import StatusBuilder

INTERVAL: Final = 30.0
"""Seconds between two writes of progress."""
NOTABLE: Final = ("generation", "trainIters")
"""Fields of `status.progress` that change when ranks start."""
OF_PODS: Final = frozenset({"placement", "waitingSince", "goodput"})
"""Fields of `status.recovery` that change with the places of pods, or with time."""
OF_START: Final = frozenset({Condition.READY, Condition.RUNNING})
"""Conditions that change while pods start."""
OF_REPORTS: Final = {"saveSeconds": "save_seconds", "evaluateSeconds": "evaluate_seconds"}
"""Fields of `status.ledger` that grow with every save and evaluation, and their attributes."""


def is_notable(status: StatusBuilder) -> bool:
    """Whether more than the progress has changed, or the run has not recovered from its last incident."""
    if status.events or status.dropped or unrecovered(status.recovery) is not None:
        return True
    if _figures_aside(status.read) == _figures_aside(status.current):
        return False
    return _without_figures(status.body.get("status") or {}) != _without_figures(status.wire())


def may_rest_on_caches(status: StatusBuilder) -> bool:
    """Whether what has changed is progress, an evaluation, or how far the pods of a run that starts are.

    Its write has no effect where the recipe has changed since it was cached, and pods that the caches lack
    are in the next one.
    """
    if not is_notable(status):
        return True
    written = status.body.get("status") or {}
    if status.events or status.dropped or unrecovered(status.recovery) is not None:
        return False
    if status.phase in TRAINS and written.get("phase") in TRAINS:
        return _without_figures(written | {"phase": status.phase}) == _without_figures(status.wire())
    starts = status.phase == written.get("phase") == Phase.STARTING
    return starts and _without_pods(written) == _without_pods(status.wire())


def only_figures_change(status: StatusBuilder, reading: ProgressReading | None) -> bool:
    """Whether a run makes progress, after the first iteration since its start, and nothing else changed."""
    resumed_from = 0 if reading is None else reading.report.resumed_from or 0
    written = (status.body.get("status") or {}).get("progress") or {}
    return written.get("iteration") not in (None, resumed_from) and not is_notable(status)


def write_delay(status: StatusBuilder, reading: ProgressReading | None) -> float:
    """Seconds for which writing this status can wait; 0 where it is to be written now, or is unchanged."""
    if not status.changed() or not only_figures_change(status, reading):
        return 0.0
    last = _last_write(status.body)
    if last is None or abs(status.now - last) >= INTERVAL:
        return 0.0
    # The clocks differ by a little, and the API server records whole seconds.
    return INTERVAL - max(0.0, status.now - last)


def _figures_aside(status: MegatronRecipeStatus) -> dict[str, Any]:
    """As `_without_figures`. Comparing two of these is quick: what was not set is the same object in both."""
    progress, recovery = status.progress or Progress(), status.recovery or RecoveryStatus()
    notable = progress.generation, progress.train_iters
    recovery = recovery.model_copy(update={"goodput": None})
    ledger = status.ledger and status.ledger.model_copy(update=dict.fromkeys(OF_REPORTS.values()))
    aside = {"progress": notable, "recovery": recovery, "validation": None, "memory": None, "ledger": ledger}
    return {**status.__dict__, **aside}


def _without_figures(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The status without what changes in every iteration or evaluation, and the memory of the ranks."""
    progress, recovery = wire.get("progress") or {}, dict(wire.get("recovery") or {})
    recovery.pop("goodput", None)
    notable = {name: progress.get(name) for name in NOTABLE}
    ledger = {name: value for name, value in (wire.get("ledger") or {}).items() if name not in OF_REPORTS}
    return {
        **wire,
        "progress": notable,
        "recovery": recovery,
        "validation": None,
        "memory": None,
        "ledger": ledger,
    }


def _without_pods(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The status without what the pods of a run that starts change."""
    recovery = {name: value for name, value in (wire.get("recovery") or {}).items() if name not in OF_PODS}
    others = [each for each in wire.get("conditions") or () if each["type"] not in OF_START]
    return {**_without_figures(wire), "recovery": recovery, "conditions": others, "ledger": None}


def _last_write(recipe: Mapping[str, Any]) -> float | None:
    """When the operator last changed the status, as the API server recorded it."""
    entries = recipe["metadata"].get("managedFields") or ()
    own = [each for each in entries if each.get("manager") == FIELD_MANAGER]
    times = [seconds(each.get("time")) for each in own if each.get("subresource") == "status"]
    return max((each for each in times if each is not None), default=None)

"""From status and snapshot of a run to the entry of its ledger of time."""

from typing import Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.pod_diagnosis import WITHOUT_CAPACITY
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.progress_status import TRAINING_PHASES
from megatron_operator.lifecycle.reported_incidents import precedes_recipe
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.time_ledger import State, advance, open_ledger, settle_old_incidents
from megatron_operator.manifests.job_backend import JobPhase

PLANNING: Final = "Planning"
"""Cause of the time until the first status."""
NOT_RECORDED: Final = "NotRecorded"
"""Cause of time that a release without a ledger supervised."""
FIRST_START: Final = "FirstStart"
RESTARTED: Final = "Restarted"
"""Cause of a start that no incident explains: an edit, or the end of a suspension."""

_IDLE: Final = frozenset({Phase.REFUSED, Phase.SUSPENDED, Phase.EXPORTING, Phase.SUCCEEDED, Phase.FAILED})
_ENDED: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED})
_BEFORE: Final = {
    Phase.IMPORTING: Condition.IMPORTED,
    Phase.PREPARING: Condition.PREPARED,
    Phase.CHECKING: Condition.PREPARED,
}
"""Phase before the job exists -> the condition whose reason is the cause."""
_LOADED: Final = TRAINING_PHASES | {"loading"}
"""Phases of a report after the rendezvous."""


def update_ledger(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Record a change of the run's state; to be called when everything else of the status is set.

    The status of a run that has no ledger yet is not written for the ledger alone.
    """
    ledger = status.current.ledger
    if ledger is None:
        if not status.changed():
            return
        # The API server sets a default of observedGeneration when a recipe is created.
        known = bool((status.body.get("status") or {}).get("phase"))
        created = status.body["metadata"].get("creationTimestamp") or timestamp(status.now)
        ledger = open_ledger(created, State("idle", NOT_RECORDED) if known else State("prepare", PLANNING))
    state, incidents = _state(status, snapshot), status.recovery.history
    ledger = advance(ledger, state, _since(status, snapshot, state), incidents, ended=status.ended)
    status.set(ledger=settle_old_incidents(ledger, incidents, status.now))


def update_reported_times(status: StatusBuilder, reading: ProgressReading | None) -> None:
    """Set the seconds in saves and evaluations. They change all the time, so they never cause a write.

    Pods sum them since the first start on these checkpoints. Sums that an earlier recipe of the name began
    are not used, since its part is not known.
    """
    ledger = status.current.ledger
    if reading is None or ledger is None:
        return
    started = reading.report.first_started_at
    if started is not None and precedes_recipe(status.body, started):
        return
    known = {"save_seconds": reading.report.save_seconds, "evaluate_seconds": reading.report.evaluate_seconds}
    longer = {
        name: round(value, 2)
        for name, value in known.items()
        if value is not None and value > (getattr(ledger, name) or 0.0)
    }
    status.set(ledger=ledger.model_copy(update=longer))


def _state(status: StatusBuilder, snapshot: RunSnapshot) -> State:
    if status.phase in _IDLE:
        return State("idle", status.phase)
    if status.phase in TRAINS:
        return State("train", accelerators=_accelerators(status))
    if status.phase == Phase.QUEUED:
        return State("queue", Reason.QUEUED)
    if status.phase not in (Phase.STARTING, Phase.RECOVERING):
        suspended = snapshot.job is not None and snapshot.job_phase is JobPhase.SUSPENDED
        queued = suspended or _reason(status) == Reason.QUEUED
        return State("queue" if queued else "prepare", _reason(status) or PLANNING)
    category = _phase_of_start(status, snapshot)
    held = category != "schedule" or any(map(node_of, (*snapshot.pods, *snapshot.leftover_pods)))
    accelerators = _accelerators(status) if held else 0
    open_ = unrecovered(status.recovery)
    if open_ is not None and status.is_true(Condition.RECOVERING):
        return State(category, open_.cause, open_.node, accelerators)
    first = status.progress.iteration is None
    cause = _reason(status) if category == "schedule" and _reason(status) in WITHOUT_CAPACITY else None
    return State(category, cause or (FIRST_START if first else RESTARTED), None, accelerators)


def _phase_of_start(status: StatusBuilder, snapshot: RunSnapshot) -> str:
    if snapshot.job is None or snapshot.all_bound_at is None:
        return "schedule"
    if not snapshot.all_running:
        return "start"
    if snapshot.reading is None:
        # An operator that has just started knows no more than the status.
        marks = status.current.ledger.marks if status.current.ledger else []
        return marks[-1].category if marks and marks[-1].category == "load" else "start"
    return "load" if snapshot.reading_is_current and snapshot.reading.report.phase in _LOADED else "start"


def _since(status: StatusBuilder, snapshot: RunSnapshot, state: State) -> float:
    """When the state began, where the cluster has it more exactly than the time of this reconcile."""
    known = None
    if state.category == "start" and snapshot.job is not None:
        # Ranks that start again do so in pods that were bound long ago.
        bound, marks = snapshot.all_bound_at, status.current.ledger.marks if status.current.ledger else []
        after_last = bound is not None and (not marks or timestamp(bound) > marks[-1].time)
        known = bound if after_last else None
    elif status.phase == _last_phase(status) and status.read.phase not in _ENDED and snapshot.job is not None:
        # An export that an edit adds after the end begins with the edit.
        known = seconds((snapshot.job.get("status") or {}).get("completionTime"))
    return status.now if known is None else min(known, status.now)


def _last_phase(status: StatusBuilder) -> Phase:
    """The phase that begins when the job is complete."""
    return Phase.SUCCEEDED if status.condition(Condition.EXPORTED) is None else Phase.EXPORTING


def _accelerators(status: StatusBuilder) -> int:
    return 0 if status.current.plan is None else status.current.plan.world_size


def _reason(status: StatusBuilder) -> str | None:
    kinds = [kind for phase, kind in _BEFORE.items() if phase == status.phase]
    found = next(filter(None, map(status.condition, [*kinds, Condition.RUNNING])), None)
    return None if found is None else found.reason

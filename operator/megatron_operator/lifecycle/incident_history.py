"""The run's list of incidents in `status.recovery`, and the totals over all of them."""

import math
from typing import Any, Final

from megatron_operator.api.recovery_status import Incident, LostSeconds, RecoveryStatus, RestartsByKind
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.status_size import LARGEST_TOTAL, LONGEST_CAUSE, cut

HISTORY_LIMIT: Final = 20
"""Incidents in the status; the totals count the older ones too."""


def newest(recovery: RecoveryStatus) -> Incident | None:
    """The last incident; None before the first."""
    return recovery.history[-1] if recovery.history else None


def unrecovered(recovery: RecoveryStatus) -> Incident | None:
    """The incident that the run has not recovered from yet."""
    last = newest(recovery)
    return last if last is not None and last.recovered_at is None else None


def detected_at(incident: Incident) -> float:
    """When the pods detected it, in seconds since the epoch.

    An operator that was not running recorded it later, so the time of the first step after it counts.
    """
    lost, recovered = incident.seconds, seconds(incident.recovered_at)
    if recovered is None or lost.load is None:
        return seconds(incident.time) or 0.0
    return recovered - sum(map(known_duration, (lost.schedule, lost.start, lost.load)))


def known_duration(value: float | None) -> float:
    """Seconds of a phase as pods report it; 0 for None, and for what is no duration."""
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def append(recovery: RecoveryStatus, **fields: Any) -> RecoveryStatus:
    """Append an incident, given the fields of `api.recovery_status.Incident` except its number."""
    last = newest(recovery)
    fields["cause"] = cut(fields["cause"], LONGEST_CAUSE)
    incident = Incident(number=1 if last is None else last.number + 1, **fields)
    return _with(recovery, [*recovery.history, incident][-HISTORY_LIMIT:], None, incident)


def change(recovery: RecoveryStatus, number: int, **fields: Any) -> RecoveryStatus:
    """Change fields of an incident and the totals; an incident that is no longer listed stays as it was.

    A run that has recovered from it has recovered from those before it too.
    """
    old = next((each for each in recovery.history if each.number == number), None)
    if old is None:
        return recovery
    if "cause" in fields:
        fields["cause"] = cut(fields["cause"], LONGEST_CAUSE)
    new = old.model_copy(update=fields)
    if new == old:
        return recovery
    kept = [new if each.number == number else _recovered_with(each, new) for each in recovery.history]
    return _with(recovery, kept, old, new)


def added(before: RecoveryStatus, after: RecoveryStatus) -> list[Incident]:
    """Incidents that `after` has and `before` has not."""
    last = newest(before)
    known = 0 if last is None else last.number
    return [each for each in after.history if each.number > known]


def _recovered_with(each: Incident, later: Incident) -> Incident:
    if each.number > later.number or each.recovered_at is not None:
        return each
    return each.model_copy(update={"recovered_at": later.recovered_at})


def _with(
    recovery: RecoveryStatus, kept: list[Incident], old: Incident | None, new: Incident
) -> RecoveryStatus:
    kind, repeated, seconds = None, new.lost_iterations or 0, LostSeconds()
    if old is not None:
        kind, repeated, seconds = old.kind, repeated - (old.lost_iterations or 0), old.seconds
    return recovery.model_copy(
        update={
            "history": kept,
            "last_incident": kept[-1],
            "restarts_by_kind": _recounted(recovery.restarts_by_kind, kind, new.kind),
            "lost_iterations": min(recovery.lost_iterations + repeated, LARGEST_TOTAL),
            "lost_seconds": _retotalled(recovery.lost_seconds, seconds, new.seconds),
        }
    )


def _recounted(counts: RestartsByKind, old: str | None, new: str) -> RestartsByKind:
    if old == new:
        return counts
    update = {new: (getattr(counts, new) or 0) + 1}
    if old is not None:
        update[old] = (getattr(counts, old) or 0) - 1
    return counts.model_copy(update=update)


def _retotalled(total: LostSeconds, old: LostSeconds, new: LostSeconds) -> LostSeconds:
    update = {}
    for phase in LostSeconds.model_fields:
        if getattr(new, phase) is not None:
            more = getattr(new, phase) - (getattr(old, phase) or 0.0)
            update[phase] = round((getattr(total, phase) or 0.0) + more, 2)
    return total.model_copy(update=update)

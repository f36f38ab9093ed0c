"""The run's list of incidents, and the sums over all of them, in `status.recovery`. No I/O."""

from typing import Any, Final

from megatron_operator.api.status import Incident, LostSeconds, RecoveryStatus, RestartsByKind

KEPT: Final = 20
"""Incidents in the status; the sums count the older ones too."""
LONGEST_CAUSE: Final = 400


def newest(recovery: RecoveryStatus) -> Incident | None:
    return recovery.history[-1] if recovery.history else None


def unrecovered(recovery: RecoveryStatus) -> Incident | None:
    """The incident that the run has not come back from yet."""
    last = newest(recovery)
    return last if last is not None and last.recovered_at is None else None


def append(recovery: RecoveryStatus, **fields: Any) -> RecoveryStatus:
    """A further incident, with the fields of `api.status.Incident` but its number."""
    last = newest(recovery)
    fields["cause"] = fields["cause"][:LONGEST_CAUSE]
    incident = Incident(number=1 if last is None else last.number + 1, **fields)
    return _with(recovery, [*recovery.history, incident][-KEPT:], None, incident)


def change(recovery: RecoveryStatus, number: int, **fields: Any) -> RecoveryStatus:
    """Say more of an incident; the sums follow. One that is no longer kept stays as it was.

    A run that has come back from it has come back from those before it too.
    """
    old = next((each for each in recovery.history if each.number == number), None)
    if old is None:
        return recovery
    new = old.model_copy(update=fields)
    if new == old:
        return recovery
    kept = [new if each.number == number else _over(each, new) for each in recovery.history]
    return _with(recovery, kept, old, new)


def appeared(before: RecoveryStatus, after: RecoveryStatus) -> list[Incident]:
    """Incidents that `after` has and `before` had not."""
    last = newest(before)
    known = 0 if last is None else last.number
    return [each for each in after.history if each.number > known]


def _over(each: Incident, later: Incident) -> Incident:
    if each.number > later.number or each.recovered_at is not None:
        return each
    return each.model_copy(update={"recovered_at": later.recovered_at})


def _with(
    recovery: RecoveryStatus, kept: list[Incident], old: Incident | None, new: Incident
) -> RecoveryStatus:
    kind, again, seconds = None, new.lost_iterations or 0, LostSeconds()
    if old is not None:
        kind, again, seconds = old.kind, again - (old.lost_iterations or 0), old.seconds
    return recovery.model_copy(
        update={
            "history": kept,
            "last_incident": kept[-1],
            "restarts_by_kind": _counted(recovery.restarts_by_kind, kind, new.kind),
            "lost_iterations": recovery.lost_iterations + again,
            "lost_seconds": _summed(recovery.lost_seconds, seconds, new.seconds),
        }
    )


def _counted(counts: RestartsByKind, old: str | None, new: str) -> RestartsByKind:
    if old == new:
        return counts
    update = {new: getattr(counts, new) + 1}
    if old is not None:
        update[old] = getattr(counts, old) - 1
    return counts.model_copy(update=update)


def _summed(total: LostSeconds, old: LostSeconds, new: LostSeconds) -> LostSeconds:
    update = {}
    for phase in LostSeconds.model_fields:
        if getattr(new, phase) is not None:
            more = getattr(new, phase) - (getattr(old, phase) or 0.0)
            update[phase] = round((getattr(total, phase) or 0.0) + more, 2)
    return total.model_copy(update=update)

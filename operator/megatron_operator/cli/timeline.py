"""What happened to a run, in order: its incidents, the operator's Events, the turns of its conditions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from megatron_operator.api.status import LostSeconds
from megatron_operator.api.times import seconds

Object = dict[str, Any]
NEAR = 120.0
"""Seconds within which an Event with an incident's cause is taken for the incident's."""
KINDS = {
    "rank": "RankRestarted",
    "pod": "PodsReplaced",
    "node": "NodeLost",
    "gang": "GangRestarted",
    "hang": "HangFound",
    "loss": "LossRolledBack",
    "resize": "Resized",
}
"""Kind of an incident -> the reason of its Event and condition, but for a resize (`Shrunk`, `Grown`)."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline."""

    time: str
    source: str
    """`incident`, `event`, `condition` or `recipe`."""
    reason: str
    message: str
    warning: bool = False
    count: int = 1
    incident: Object | None = field(default=None)
    """As status.recovery.history has it."""

    def document(self) -> Object:
        """For programs."""
        return asdict(self)


def timeline(recipe: Object, events: Sequence[Object]) -> list[Moment]:
    """Oldest first; of an incident and its Event only the incident, which says more."""
    status = recipe.get("status") or {}
    incidents = [_incident(each) for each in (status.get("recovery") or {}).get("history") or []]
    told = [event for event in map(_event, events) if not _tells(event, incidents)]
    said = {(event.reason, event.message) for event in told}
    turns = [turn for turn in _conditions(status, said) if not _tells(turn, incidents)]
    made = Moment(recipe["metadata"]["creationTimestamp"], "recipe", "Created", "")
    return sorted([made, *incidents, *told, *turns], key=lambda moment: seconds(moment.time) or 0.0)


def _incident(incident: Object) -> Moment:
    kind = str(incident["kind"])
    return Moment(
        incident["time"],
        "incident",
        KINDS.get(kind, kind),
        str(incident["cause"]),
        warning=True,
        incident=incident,
    )


def _event(event: Object) -> Moment:
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    )
    return Moment(
        next(str(time) for time in times if time),
        "event",
        str(event.get("reason") or ""),
        str(event.get("message") or "").strip(),
        warning=event.get("type") == "Warning",
        count=int(series.get("count") or event.get("count") or 1),
    )


def _tells(moment: Moment, incidents: Sequence[Moment]) -> bool:
    """Whether an Event or a condition only says that there was this incident."""
    at = seconds(moment.time) or 0.0
    resized = moment.source == "condition" and moment.reason in ("Shrunk", "Grown")
    reason = KINDS["resize"] if resized else moment.reason
    return any(
        incident.reason == reason
        and incident.message in moment.message
        and abs((seconds(incident.time) or 0.0) - at) <= NEAR
        for incident in incidents
    )


def _conditions(status: Object, told: set[tuple[str, str]]) -> Iterator[Moment]:
    """The turns that no Event has told already."""
    for condition in status.get("conditions") or []:
        if (condition.get("reason"), condition.get("message")) in told:
            continue
        turned = condition["type"] if condition["status"] == "True" else f"not {condition['type']}"
        reason = condition.get("reason") or ""
        message = condition.get("message") or ""
        said = f"{turned}: {message}" if message else turned
        yield Moment(
            condition["lastTransitionTime"],
            "condition",
            reason,
            message if reason == condition["type"] else said,
            warning=condition["type"] == "Failed" and condition["status"] == "True",
        )


def cost(incident: Object) -> str:
    """Where it was and what it cost, in one line."""
    parts = []
    where = [incident.get("pod"), _of("rank", incident.get("rank")), _of("on", incident.get("node"))]
    if any(where):
        parts.append(" ".join(part for part in where if part))
    if incident.get("resumedFrom") is not None:
        redone = incident.get("lostIterations")
        again = f", {redone:,} iterations again" if redone else ""
        parts.append(f"resumed from iteration {incident['resumedFrom']:,}{again}")
    if any((incident.get("seconds") or {}).values()):
        parts.append(f"lost {lost(incident['seconds'])}")
    elif incident.get("recoveredAt") is None:
        parts.append("not training again yet")
    return "; ".join(parts)


def _of(word: str, value: object) -> str | None:
    return None if value is None else f"{word} {value}"


def _short(value: float) -> str:
    """`0.4 s`, `12 s`, `3m05s`, `2h04m`, `3d02h`."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def after(moment: Moment, first: Moment) -> str:
    """How long after the first."""
    return _short(max(0.0, (seconds(moment.time) or 0.0) - (seconds(first.time) or 0.0)))


def lost(spent: Object) -> str:
    """Seconds of the phases, summed and apart, in the order in which they pass."""
    phases = {name: spent[name] for name in LostSeconds.model_fields if spent.get(name)}
    if not phases:
        return "none"
    apart = ", ".join(f"{name} {_short(value)}" for name, value in phases.items())
    return f"{_short(sum(phases.values()))} ({apart})"

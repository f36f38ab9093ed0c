"""The timeline of a run: its incidents, the operator's Events, and the changes of its conditions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recovery_status import LostSeconds
from megatron_operator.api.status import Straggler
from megatron_operator.api.times import seconds
from megatron_operator.cli.attention import stragglers
from megatron_operator.lifecycle.stragglers import describe

Object = dict[str, Any]
SAME_INCIDENT = 120.0
"""Seconds within which an Event or condition with an incident's cause belongs to that incident."""
KINDS = {
    "rank": "RankRestarted",
    "pod": "PodsReplaced",
    "node": "NodeLost",
    "gang": "GangRestarted",
    "hang": "HangFound",
    "loss": "LossRolledBack",
    "resize": "Resized",
    "maintenance": "MovedForMaintenance",
}
"""Kind of an incident -> the reason of its Event and condition, but for a resize (`Shrunk`, `Grown`)."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of the timeline."""

    time: str
    source: str
    """`incident`, `straggler`, `event`, `condition` or `recipe`."""
    reason: str
    message: str
    warning: bool = False
    count: int = 1
    incident: Object | None = field(default=None)
    """The incident as in status.recovery.history."""

    def to_dict(self) -> Object:
        """The entry for programs."""
        return asdict(self)


def timeline(recipe: Object, events: Sequence[Object]) -> list[TimelineEntry]:
    """All entries, oldest first. An Event or condition that only repeats an incident is left out."""
    status = recipe.get("status") or {}
    incidents = [_incident(each) for each in (status.get("recovery") or {}).get("history") or []]
    slow = [_straggler(each) for each in stragglers(status)]
    reported = [event for event in map(_event, events) if not _repeats(event, incidents)]
    if slow:
        # Each is in the status, which outlives its Event.
        reported = [event for event in reported if event.reason != Reason.SLOW_RANK]
    texts = {(event.reason, event.message) for event in reported}
    changes = [change for change in _conditions(status, texts) if not _repeats(change, incidents)]
    created = TimelineEntry(recipe["metadata"]["creationTimestamp"], "recipe", "Created", "")
    return sorted(
        [created, *incidents, *slow, *reported, *changes], key=lambda entry: seconds(entry.time) or 0.0
    )


def _incident(incident: Object) -> TimelineEntry:
    kind = str(incident["kind"])
    return TimelineEntry(
        incident["time"],
        "incident",
        KINDS.get(kind, kind),
        str(incident["cause"]),
        warning=True,
        incident=incident,
    )


def _straggler(straggler: Straggler) -> TimelineEntry:
    until = straggler.until
    end = f"; until {until[:19].replace('T', ' ')}" if until else "; still slow"
    text = describe([straggler]) + end
    return TimelineEntry(straggler.since, "straggler", Reason.SLOW_RANK, text, warning=True)


def _event(event: Object) -> TimelineEntry:
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    )
    return TimelineEntry(
        next(str(time) for time in times if time),
        "event",
        str(event.get("reason") or ""),
        str(event.get("message") or "").strip(),
        warning=event.get("type") == "Warning",
        count=int(series.get("count") or event.get("count") or 1),
    )


def _repeats(entry: TimelineEntry, incidents: Sequence[TimelineEntry]) -> bool:
    """Whether an Event or a condition reports only what one of the incidents does."""
    at = seconds(entry.time) or 0.0
    resized = entry.source == "condition" and entry.reason in ("Shrunk", "Grown")
    reason = KINDS["resize"] if resized else entry.reason
    return any(
        incident.reason == reason
        and incident.message in entry.message
        and abs((seconds(incident.time) or 0.0) - at) <= SAME_INCIDENT
        for incident in incidents
    )


def _conditions(status: Object, reported: set[tuple[str, str]]) -> Iterator[TimelineEntry]:
    """The last change of each condition, unless an Event has reported its reason and message.

    Ready and Stalled only repeat the others.
    """
    for condition in status.get("conditions") or []:
        if condition["type"] in (Condition.READY, Condition.STALLED):
            continue
        if (condition.get("reason"), condition.get("message")) in reported:
            continue
        change = condition["type"] if condition["status"] == "True" else f"not {condition['type']}"
        reason = condition.get("reason") or ""
        message = condition.get("message") or ""
        text = f"{change}: {message}" if message else change
        yield TimelineEntry(
            condition["lastTransitionTime"],
            "condition",
            reason,
            message if reason == condition["type"] else text,
            warning=condition["type"] == "Failed" and condition["status"] == "True",
        )


def incident_cost(incident: Object) -> str:
    """Place of an incident and what it cost, in one line."""
    parts = []
    where = [incident.get("pod"), _of("rank", incident.get("rank")), _of("on", incident.get("node"))]
    if any(where):
        parts.append(" ".join(part for part in where if part))
    if incident.get("resumedFrom") is not None:
        lost = incident.get("lostIterations")
        repeated = f", {lost:,} iterations repeated" if lost else ""
        parts.append(f"resumed from iteration {incident['resumedFrom']:,}{repeated}")
    if any((incident.get("seconds") or {}).values()):
        parts.append(f"lost {format_lost_time(incident['seconds'])}")
    elif incident.get("recoveredAt") is None:
        parts.append("not training again yet")
    return "; ".join(parts)


def _of(word: str, value: object) -> str | None:
    return None if value is None else f"{word} {value}"


def format_duration(value: float) -> str:
    """Seconds as `0.4 s`, `12 s`, `3m05s`, `2h04m` or `3d02h`."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def elapsed(entry: TimelineEntry, first: TimelineEntry) -> str:
    """Time from the first entry to this one."""
    return format_duration(max(0.0, (seconds(entry.time) or 0.0) - (seconds(first.time) or 0.0)))


def format_lost_time(spent: Object) -> str:
    """Seconds lost by phase as a sum and in order of the phases; `none` without any."""
    phases = {name: spent[name] for name in LostSeconds.model_fields if spent.get(name)}
    if not phases:
        return "none"
    by_phase = ", ".join(f"{name} {format_duration(value)}" for name, value in phases.items())
    return f"{format_duration(sum(phases.values()))} ({by_phase})"

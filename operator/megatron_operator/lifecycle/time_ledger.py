"""The ledger of a run's time: each moment since the recipe's creation belongs to one category.

Marks record when the run's state changed. What incidents report later, such as when a failed run made its
last step, lies over them. The sum over the categories is the wall clock by construction: both only divide it.
Times are integers, in hundredths of a second, so that nothing is rounded on the way.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from megatron_operator.api.ledger_status import LedgerLoss, LedgerMark, TimeLedger
from megatron_operator.api.recovery_status import Incident
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.incident_history import detected_at, known_duration
from megatron_operator.lifecycle.ledger_weeks import TICKS, WeekSum, add_span, read_weeks, write_weeks
from megatron_operator.lifecycle.status_size import cut

CATEGORIES: Final = (
    "queue",
    "prepare",
    "schedule",
    "start",
    "load",
    "train",
    "save",
    "evaluate",
    "redo",
    "detect",
    "hang",
    "idle",
)
USEFUL: Final = frozenset({"train", "save", "evaluate"})
"""Categories that are not lost."""
MAX_MARKS: Final = 40
"""Number of marks, changes of state, of which the oldest are settled when there are more."""
MAX_LOSSES: Final = 32
"""Number of losses in the status."""
MAX_UNSETTLED_INCIDENTS: Final = 10
"""Number of incidents that are not settled: fewer than the status keeps, so that an incident is settled
before it leaves the history."""
LONGEST_CAUSE: Final = 120
"""Bytes of the cause of a mark or loss."""
OTHER_CAUSES: Final = "other causes"

_MARKS_KEPT: Final = 30
_COVERED: Final = frozenset({"schedule", "start", "load", "train"})
"""States whose limits incidents know better than marks do."""


class State(NamedTuple):
    """What a run does from some moment on."""

    category: str
    cause: str | None = None
    node: str | None = None
    accelerators: int = 0
    """Accelerators that it holds meanwhile."""


class _Span(NamedTuple):
    """A part of an incident, in ticks since the epoch."""

    begin: int
    end: int
    category: str
    cause: str
    node: str | None


@dataclass(slots=True)
class Account:
    """Time by category, in hundredths of a second."""

    ticks: dict[str, int] = field(default_factory=dict)
    """Wall time by category."""
    accelerator_ticks: dict[str, int] = field(default_factory=dict)
    """The same, times the accelerators that the run held."""
    losses: dict[tuple[str, str | None, str | None], int] = field(default_factory=dict)
    """By category, cause and node."""
    weeks: dict[str, WeekSum] = field(default_factory=dict)
    """Accelerator time by week."""

    @property
    def held(self) -> int:
        """Accelerator time of all categories."""
        return sum(self.accelerator_ticks.values())

    @property
    def held_lost(self) -> int:
        """Accelerator time of the categories that are lost."""
        return sum(ticks for name, ticks in self.accelerator_ticks.items() if name not in USEFUL)

    def add(self, start: int, end: int, state: State) -> None:
        """Add the time from `start` to `end`, in ticks, that the run spent in a state."""
        ticks = end - start
        add_span(self.weeks, start, end, state.accelerators, lost=state.category not in USEFUL)
        _increase(self.ticks, state.category, ticks)
        if state.accelerators:
            _increase(self.accelerator_ticks, state.category, ticks * state.accelerators)
        if state.category not in USEFUL:
            _increase(self.losses, (state.category, state.cause, state.node), ticks)

    def divide_training(self, save: float | None, evaluate: float | None) -> None:
        """Divide the time of training by the seconds that the pods report of saves and evaluations."""
        whole = left = sum(self.ticks.pop(name, 0) for name in USEFUL)
        held = held_left = sum(self.accelerator_ticks.pop(name, 0) for name in USEFUL)
        for name, reported in (("save", save), ("evaluate", evaluate)):
            if part := min(left, _ticks(reported)):
                share = held * part // whole
                self.ticks[name], self.accelerator_ticks[name] = part, share
                left, held_left = left - part, held_left - share
        if left:
            self.ticks["train"], self.accelerator_ticks["train"] = left, held_left

    def largest_losses(self, most: int) -> list[LedgerLoss]:
        """The losses, largest first; those beyond `most` are one entry for each category."""
        ranked = sorted(self.losses.items(), key=lambda item: -item[1])
        if len(ranked) > most:
            kept = dict(ranked[: most - len(CATEGORIES)])
            for (category, _, _), ticks in ranked[most - len(CATEGORIES) :]:
                _increase(kept, (category, OTHER_CAUSES, None), ticks)
            ranked = sorted(kept.items(), key=lambda item: -item[1])
        return [
            LedgerLoss(category=category, cause=cause, node=node, seconds=ticks / TICKS)
            for (category, cause, node), ticks in ranked
        ]


def open_ledger(created: str, state: State) -> TimeLedger:
    """The ledger of a recipe that was created at this time, RFC 3339, in this state."""
    return TimeLedger(settled_at=created, marks=[_mark(created, state)])


def advance(
    ledger: TimeLedger, state: State, at: float, incidents: Sequence[Incident], *, ended: bool
) -> TimeLedger:
    """Record that the run is in a state since `at`; the same state again changes nothing.

    Args:
        at: Seconds since the epoch. A time before the last mark becomes that of the mark.
        incidents: `status.recovery.history`.
        ended: Whether the run is over: everything up to this mark is settled.
    """
    state = state._replace(cause=None if state.cause is None else cut(state.cause, LONGEST_CAUSE))
    marks = list(ledger.marks)
    if marks and _state(marks[-1]) == state:
        return ledger
    since = max(timestamp(at), marks[-1].time if marks else ledger.settled_at, ledger.settled_at)
    if marks and marks[-1].time == since:
        marks.pop()
    if not marks or _state(marks[-1]) != state:
        marks.append(_mark(since, state))
    ledger = ledger.model_copy(update={"marks": marks})
    if ended:
        return _settle(ledger, incidents, _ticks_of(since))
    if len(marks) > MAX_MARKS:
        ledger = _settle(ledger, incidents, _ticks_of(marks[-_MARKS_KEPT].time))
    return ledger


def settle_old_incidents(ledger: TimeLedger, incidents: Sequence[Incident], now: float) -> TimeLedger:
    """Settle the time before the newest incidents, as the status does not keep the others."""
    settled = _ticks_of(ledger.settled_at)
    pending = [each for each in incidents if _ticks_of(each.time) > settled]
    if len(pending) <= MAX_UNSETTLED_INCIDENTS:
        return ledger
    kept = pending[-MAX_UNSETTLED_INCIDENTS // 2 :]
    began = min(_detected(each) - _ticks(each.seconds.detect) for each in kept)
    until = min(began, _ticks(now)) // TICKS * TICKS
    return _settle(ledger, incidents, until) if until > settled else ledger


def account(ledger: TimeLedger, incidents: Sequence[Incident], until: float) -> Account:
    """All time from the recipe's creation to `until`, seconds since the epoch, or to the last mark."""
    return _account(ledger, incidents, _ticks(until_of(ledger, until)))


def until_of(ledger: TimeLedger, now: float | None) -> float:
    """The end of the account at `now`: at least the last mark, where that of a run that is over ends."""
    last = seconds(ledger.marks[-1].time if ledger.marks else ledger.settled_at) or 0.0
    return last if now is None else max(last, now)


def by_category(ticks: dict[str, int]) -> dict[str, float]:
    """Seconds by category, of ticks by category, in the order of `CATEGORIES`; unknown ones follow."""
    order = {name: position for position, name in enumerate(CATEGORIES)}
    names = sorted(ticks, key=lambda name: order.get(name, len(order)))
    return {name: ticks[name] / TICKS for name in names}


def _account(ledger: TimeLedger, incidents: Sequence[Incident], until: int) -> Account:
    found = Account(
        {name: _ticks(value) for name, value in ledger.seconds.items()},
        {name: _ticks(value) for name, value in ledger.accelerator_seconds.items()},
        {(each.category, each.cause, each.node): _ticks(each.seconds) for each in ledger.losses},
        read_weeks(ledger.weeks),
    )
    for start, end, state in _segments(ledger, incidents, until):
        found.add(start, end, state)
    found.divide_training(ledger.save_seconds, ledger.evaluate_seconds)
    return found


def _settle(ledger: TimeLedger, incidents: Sequence[Incident], until: int) -> TimeLedger:
    """The ledger whose totals reach up to `until`, whole seconds in ticks, and whose marks begin there."""
    found = _account(ledger, incidents, until)
    settled_at = timestamp(until / TICKS)
    index = max(0, bisect_right(_times(ledger), until) - 1)
    marks = [each.model_copy() for each in ledger.marks[index:]]
    if marks:
        marks[0] = marks[0].model_copy(update={"time": settled_at})
    return ledger.model_copy(
        update={
            "settled_at": settled_at,
            "seconds": by_category(found.ticks),
            "accelerator_seconds": by_category(found.accelerator_ticks),
            "losses": found.largest_losses(MAX_LOSSES),
            "weeks": write_weeks(found.weeks),
            "marks": marks,
        }
    )


def _segments(
    ledger: TimeLedger, incidents: Sequence[Incident], until: int
) -> Iterator[tuple[int, int, State]]:
    """The time from what is settled to `until`, in pieces with one state each."""
    first, times = _ticks_of(ledger.settled_at), _times(ledger)
    spans = [span for span in _spans(incidents) if span.end > first and span.begin < until]
    edges = {first, until, *times, *(edge for span in spans for edge in (span.begin, span.end))}
    for start, end in pairwise(sorted(edge for edge in edges if first <= edge <= until)):
        state = _state(ledger.marks[bisect_right(times, start) - 1]) if times else State("idle")
        if state.category in _COVERED:
            over = next((span for span in reversed(spans) if span.begin <= start and end <= span.end), None)
            if over is not None:
                state = State(over.category, over.cause, over.node, state.accelerators)
        yield start, end, state


def _times(ledger: TimeLedger) -> list[int]:
    """When the states of the marks begin; the first covers everything before it that is not settled."""
    latest, times = _ticks_of(ledger.settled_at), []
    for number, mark in enumerate(ledger.marks):
        latest = max(latest, _ticks_of(mark.time)) if number else latest
        times.append(latest)
    return times


def _spans(incidents: Sequence[Incident]) -> list[_Span]:
    """The known phases of the incidents; a later one prevails."""
    spans: list[_Span] = []
    known_until = 0
    for each in incidents:
        lost, detected = each.seconds, _detected(each)
        place = cut(each.cause, LONGEST_CAUSE), each.node
        # A run that has not trained between two incidents made its last step before both.
        begin = max(detected - _ticks(lost.detect), min(known_until, detected))
        waits = "hang" if each.kind == "hang" or each.hang else "detect"
        spans.append(_Span(begin, detected, waits, *place))
        at = detected
        for name, duration in (("schedule", lost.schedule), ("start", lost.start), ("load", lost.load)):
            spans.append(_Span(at, at + _ticks(duration), name, *place))
            at += _ticks(duration)
        known_until = at
        spans.append(_Span(at, at + _ticks(lost.redo), "redo", *place))
    return [span for span in spans if span.end > span.begin]


def _detected(incident: Incident) -> int:
    return _ticks(detected_at(incident))


def _mark(time: str, state: State) -> LedgerMark:
    return LedgerMark(time=time, **state._asdict())


def _state(mark: LedgerMark) -> State:
    return State(mark.category, mark.cause, mark.node, mark.accelerators)


def _ticks(value: float | None) -> int:
    return round(known_duration(value) * TICKS)


def _ticks_of(time: str) -> int:
    return _ticks(seconds(time))


def _increase(amounts: dict[Any, int], key: object, ticks: int) -> None:
    amounts[key] = amounts.get(key, 0) + ticks

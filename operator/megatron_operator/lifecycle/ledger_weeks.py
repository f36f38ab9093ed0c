"""Accelerator time of a run by week. A week begins on Monday, 00:00 UTC, and is named by that day.

Times are integers, in hundredths of a second, as in the ledger.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from megatron_operator.api.ledger_status import LedgerWeek

MAX_WEEKS: Final = 60
"""Number of weeks in the status; older ones are dropped, and remain in the sums by category."""
TICKS: Final = 100
"""Ticks of a second."""
_WEEK: Final = 7 * 86_400 * TICKS
_FIRST_MONDAY: Final = 4 * 86_400 * TICKS
"""5 January 1970."""


@dataclass(slots=True)
class WeekSum:
    """Accelerator time of one week, in hundredths of a second."""

    ticks: int = 0
    lost: int = 0
    """What of it was lost."""


def monday(time: float) -> str:
    """The week of a moment, seconds since the epoch: the date of its Monday, `2026-11-23`."""
    return _name(_index(round(time * TICKS)))


def add_span(weeks: dict[str, WeekSum], start: int, end: int, accelerators: int, *, lost: bool) -> None:
    """Add the time that accelerators were held from `start` to `end`, ticks since the epoch."""
    if not accelerators:
        return
    for week, ticks in _by_week(start, end):
        sums = weeks.setdefault(week, WeekSum())
        sums.ticks += ticks * accelerators
        sums.lost += ticks * accelerators if lost else 0


def read_weeks(recorded: list[LedgerWeek] | None) -> dict[str, WeekSum]:
    """The sums that a status has."""
    return {
        each.week: WeekSum(
            round(each.accelerator_seconds * TICKS), round(each.lost_accelerator_seconds * TICKS)
        )
        for each in recorded or ()
        if _is_date(each.week)
    }


def write_weeks(weeks: Mapping[str, WeekSum]) -> list[LedgerWeek] | None:
    """The newest weeks for a status, oldest first; None without any.

    An empty list would be written into the status of each run that a release without weeks has settled.
    """
    found = [
        LedgerWeek(
            week=week,
            accelerator_seconds=weeks[week].ticks / TICKS,
            lost_accelerator_seconds=weeks[week].lost / TICKS,
        )
        for week in sorted(weeks)[-MAX_WEEKS:]
    ]
    return found or None


def _by_week(start: int, end: int) -> Iterator[tuple[str, int]]:
    while start < end:
        index = _index(start)
        until = min(end, (index + 1) * _WEEK + _FIRST_MONDAY)
        yield _name(index), until - start
        start = until


def _index(ticks: int) -> int:
    return (ticks - _FIRST_MONDAY) // _WEEK


def _name(index: int) -> str:
    return f"{datetime.fromtimestamp((index * _WEEK + _FIRST_MONDAY) / TICKS, UTC):%Y-%m-%d}"


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True

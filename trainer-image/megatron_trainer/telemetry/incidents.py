"""Failure reports: why a launcher asks for a new generation, and the incident that node 0 records from it.

All times are Unix seconds by the clock of the pod that recorded them.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from megatron_contract.incident import ReportedIncident


class FailureKind(StrEnum):
    """The kind of a failure, as /progress reports it."""

    RANK = "rank"
    POD = "pod"
    HANG = "hang"
    LOSS = "loss"
    STORE = "store"
    STOP = "stop"


# Several pods may report one failure. The kind that comes first in this order names it.
_PRECEDENCE = (
    FailureKind.HANG,
    FailureKind.LOSS,
    FailureKind.STOP,
    FailureKind.POD,
    FailureKind.RANK,
    FailureKind.STORE,
)


LONGEST_CAUSE = 1000
"""Characters of the causes of one interruption. A report that is full changes no more, so that the reports of
2,048 pods are not sent to 2,048 pods each."""
_MORE = "; and others"


@dataclass(frozen=True)
class FailureReport:
    """Why a launcher asks for a new generation.

    `node_rank` and `rank` identify what failed, None if the reporter does not know. `failed_iteration` is set
    if the step of that iteration raised the failure, so that it may recur there; `unreadable` is the
    iteration of a checkpoint that could not be loaded.
    """

    kind: FailureKind
    cause: str
    node_rank: int | None = None
    rank: int | None = None
    failed_iteration: int | None = None
    unreadable: int | None = None
    detected_at: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object, for the gang's store and the run journal."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "FailureReport":
        """Parse what `to_json` returned. Raises KeyError, TypeError or ValueError."""
        report = cls(**(dict(value) | {"kind": FailureKind(value["kind"])}))
        numbers = (report.node_rank, report.rank, report.failed_iteration, report.unreadable)
        if not (
            isinstance(report.cause, str)
            and type(report.detected_at) in (int, float)
            and all(number is None or type(number) is int for number in numbers)
        ):
            raise TypeError(f"a failure report with a value of the wrong type: {report!r:.200}")
        return report

    @property
    def indirect(self) -> bool:
        """Whether the reporter only observed the failure of another pod and cannot identify it."""
        return self.kind is FailureKind.STORE or (self.kind is FailureKind.POD and self.node_rank is None)


def merge_reports(first: FailureReport | None, second: FailureReport) -> FailureReport:
    """Merge two reports of the same interruption: the earliest time, the causes of all direct reports.

    Causes beyond LONGEST_CAUSE are left out.
    """
    if first is None or first == second:
        return second
    primary, other = sorted(
        (first, second), key=lambda report: (report.indirect, _PRECEDENCE.index(report.kind))
    )
    cause = primary.cause
    if not other.indirect and other.cause not in cause:
        cause = _add_cause(first.cause, second.cause)
    fallback = primary if other.indirect else other
    return replace(
        primary,
        cause=cause,
        node_rank=primary.node_rank if primary.node_rank is not None else fallback.node_rank,
        rank=primary.rank if primary.rank is not None else fallback.rank,
        failed_iteration=primary.failed_iteration or fallback.failed_iteration,
        unreadable=primary.unreadable or fallback.unreadable,
        detected_at=min(first.detected_at, second.detected_at),
    )


def _add_cause(known: str, other: str) -> str:
    if other in known or known.endswith(_MORE):
        return known
    both = f"{known}; {other}"
    return both if len(both) <= LONGEST_CAUSE else known + _MORE


def new_incident(
    generation: int,
    report: FailureReport,
    iteration: int | None,
    last_step_at: float | None,
    resumed_from: int | None,
    met_at: float,
) -> ReportedIncident:
    """Build the incident of `report`; the times of later phases are None.

    `generation` is the one that starts because of it, `iteration` the last one done before it,
    `resumed_from` the iteration from which it resumes; None: from the beginning. `last_step_at` and `met_at`,
    when the last iteration was done and when all pods had met, are in Unix seconds.
    """
    return ReportedIncident(
        generation=generation,
        detected_at=report.detected_at,
        kind=str(report.kind),
        cause=report.cause,
        node_rank=report.node_rank,
        rank=report.rank,
        iteration=iteration,
        resumed_from=resumed_from,
        last_step_at=last_step_at,
        met_at=met_at,
    )

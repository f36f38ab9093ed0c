"""What interrupted the run: a launcher's report, and the incident that node 0 writes down from it.

All times are unix seconds of the clock of the pod that saw it.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What kind of thing went wrong, as /progress names it."""

    RANK = "rank"
    POD = "pod"
    HANG = "hang"
    LOSS = "loss"
    STORE = "store"
    STOP = "stop"


# Several pods may report one failure. The first of these says what it was.
_ORDER = (Kind.HANG, Kind.LOSS, Kind.STOP, Kind.POD, Kind.RANK, Kind.STORE)


@dataclass(frozen=True)
class Report:
    """Why a launcher asks for a new generation.

    `node_rank` and `rank` name what failed, None where the reporter cannot tell. `failed_iteration` is set
    where the failure came out of that iteration's step itself, so that it may come again there; `unreadable`
    is the iteration of a checkpoint that could not be loaded.
    """

    kind: Kind
    cause: str
    node_rank: int | None = None
    rank: int | None = None
    failed_iteration: int | None = None
    unreadable: int | None = None
    detected_at: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Report":
        return cls(**(dict(value) | {"kind": Kind(value["kind"])}))

    @property
    def hearsay(self) -> bool:
        """Whether the reporter only felt the failure of somebody else, and knows no name."""
        return self.kind is Kind.STORE or (self.kind is Kind.POD and self.node_rank is None)


def merge(first: Report | None, second: Report) -> Report:
    """One report of two about the same interruption: the earliest time, all causes that say something."""
    if first is None or first == second:
        return second
    telling, other = sorted((first, second), key=lambda report: (report.hearsay, _ORDER.index(report.kind)))
    cause = telling.cause
    if not other.hearsay and other.cause not in cause:
        causes = [first.cause, second.cause]
        cause = causes[0] if causes[1] in causes[0] else "; ".join(causes)
    named = other if not other.hearsay else telling
    return replace(
        telling,
        cause=cause,
        node_rank=telling.node_rank if telling.node_rank is not None else named.node_rank,
        rank=telling.rank if telling.rank is not None else named.rank,
        failed_iteration=telling.failed_iteration or named.failed_iteration,
        unreadable=telling.unreadable or named.unreadable,
        detected_at=min(first.detected_at, second.detected_at),
    )


def incident(
    generation: int,
    report: Report,
    iteration: int | None,
    last_step_at: float | None,
    resumed_from: int | None,
    met_at: float,
) -> dict[str, Any]:
    """An incident as /progress tells it; what has not happened yet is None.

    `generation` is the one that began because of it, `iteration` the last that was done before.
    """
    return {
        "generation": generation,
        "kind": str(report.kind),
        "nodeRank": report.node_rank,
        "rank": report.rank,
        "cause": report.cause,
        "iteration": iteration,
        "resumedFrom": resumed_from,
        "lastStepAt": last_step_at,
        "detectedAt": report.detected_at,
        "metAt": met_at,
        "loadedAt": None,
        "firstStepAt": None,
        "caughtUpAt": None,
    }

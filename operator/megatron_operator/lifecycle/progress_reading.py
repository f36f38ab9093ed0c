"""One progress report of a run, merged from the reports of several of its pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from megatron_contract.incident import ReportedIncident
from megatron_contract.progress import OF_THE_ITERATION, ProgressReport, fullest_ranks

_FIELDS: Final = tuple(each.name for each in fields(ProgressReport))


@dataclass(frozen=True, slots=True)
class ProgressTarget:
    """A pod that serves /progress."""

    pod: str
    ip: str
    node_rank: int


@dataclass(frozen=True, slots=True)
class ProgressReading:
    """The last progress that the pods of one run reported."""

    report: ProgressReport
    answered: float
    """When a pod last answered, seconds since the epoch by the clock at the time of reading."""
    unchanged: float = 0.0
    """Seconds for which pods have answered while phase, iteration and generation stayed the same."""
    unmoved: float = 0.0
    """The same, and no rank reported that it loads or evaluates: seconds without progress."""
    reached: int | None = None
    """The last iteration that was reported in the generation before this one; None when not known."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Pods were asked for their progress, and none has answered since."""

    seconds: float
    """Since the first request without an answer, by a monotonic clock."""
    problem: str
    """What became of the last request, in a few words."""


def merge_reports(reports: Mapping[int, ProgressReport]) -> ProgressReport:
    """One report from the reports of pods by node rank: that of the first pod, completed by the others.

    Only the last pipeline stage knows the loss, and it may run in another pod. Pods are asked one after the
    other: one that was asked before a restart reports the generation before, and no iteration of the new one.
    """
    newest = max((report.generation or 0 for report in reports.values()), default=0)
    current = {rank: each for rank, each in reports.items() if each.generation in (None, newest)}
    in_order = [reports[rank] for rank in (*sorted(current), *sorted(reports.keys() - current))]
    merged: dict[str, Any] = {}
    for name in _FIELDS:
        for report in in_order:
            if (value := getattr(report, name)) is not None:
                merged[name] = value
                break
    iterations = [each.iteration for each in current.values() if each.iteration is not None]
    merged["iteration"] = newest_iteration = max(iterations, default=None)
    if newest_iteration is not None:
        # A pod that was asked a moment earlier may report the iteration before, with the loss of that one.
        there = [current[rank] for rank in sorted(current) if current[rank].iteration == newest_iteration]
        for name in OF_THE_ITERATION:
            known = (getattr(each, name) for each in there)
            merged[name] = next((value for value in known if value is not None), None)
    # A new pod learns the earlier incidents and evaluations from the first pod.
    merged["evaluations"] = next((each.evaluations for each in in_order if each.evaluations), ())
    merged["memory"] = fullest_ranks(rank for report in current.values() for rank in report.memory)
    merged["incidents"] = max((report.incidents for report in in_order), key=_recency)
    warnings = [warning for report in in_order for warning in report.warnings]
    merged["warnings"] = tuple(dict.fromkeys(warnings))
    return ProgressReport(**merged)


def _recency(incidents: Sequence[ReportedIncident]) -> tuple[int, int]:
    """Larger is more recent: the generation of the last incident, then the number of its known fields."""
    if not incidents:
        return -1, 0
    last = incidents[-1]
    return last.generation, sum(getattr(last, each.name) is not None for each in fields(last))

"""Slow ranks that the pods report -> `status.stragglers`, with pod and node, and an Event for each once."""

from collections.abc import Mapping
from typing import Final

from megatron_contract.progress import ProgressReport, ReportedStraggler

from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import Straggler
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.reported_incidents import PodPlacement
from megatron_operator.lifecycle.status_builder import StatusBuilder

HISTORY_LIMIT: Final = 20
"""Slow ranks in the status, those of the past included; a report has fewer."""


def update_stragglers(
    status: StatusBuilder, report: ProgressReport, placement: Mapping[int, PodPlacement]
) -> None:
    """Add the ranks that have become slow, and end those that no longer are.

    `placement`: the gang's pods by node rank. The figures are those at which a rank was named.
    """
    reported = {each.rank: each for each in report.stragglers}
    known = {each.rank for each in current_stragglers(status)}
    new = [_named(status, each, placement) for each in report.stragglers if each.rank not in known]
    for node in dict.fromkeys(each.pod for each in new):
        together = [each for each in new if each.pod == node]
        status.add_event(Reason.SLOW_RANK, describe(together), warning=True)
    _keep(status, set(reported), new)


def end_stragglers(status: StatusBuilder) -> None:
    """Record that no rank is slow any more, because none runs."""
    _keep(status, set(), [])


def current_stragglers(status: StatusBuilder) -> list[Straggler]:
    """The ranks of `status.stragglers` that are slow now."""
    return [each for each in status.current.stragglers or () if each.until is None]


def describe(together: list[Straggler]) -> str:
    """One sentence on slow ranks of one pod, with the figures of the slowest."""
    worst = max(together, key=lambda each: each.slowdown)
    ranks = ", ".join(str(each.rank) for each in sorted(together, key=lambda each: each.rank))
    place = f"{worst.pod or 'a pod'} on {worst.node}" if worst.node else worst.pod or "a pod"
    plural = "s" if len(together) > 1 else ""
    return (
        f"rank{plural} {ranks} ({place}): {worst.slowdown:.3g} times as long as the peers for the own work, "
        f"{worst.own_seconds:.3g} s of an iteration against {worst.peer_seconds:.3g} s; all others wait"
    )


def _named(
    status: StatusBuilder, reported: ReportedStraggler, placement: Mapping[int, PodPlacement]
) -> Straggler:
    place = placement.get(reported.node_rank)
    return Straggler(
        rank=reported.rank,
        pod=place and place.pod,
        node=place and place.node,
        iteration=reported.iteration,
        slowdown=round(reported.slowdown, 2),
        own_seconds=float(f"{reported.own_seconds:.4g}"),
        peer_seconds=float(f"{reported.peer_seconds:.4g}"),
        since=timestamp(status.now),
    )


def _keep(status: StatusBuilder, slow: set[int], new: list[Straggler]) -> None:
    now = timestamp(status.now)
    kept = [
        each if each.until is not None or each.rank in slow else each.model_copy(update={"until": now})
        for each in status.current.stragglers or ()
    ]
    changed = [*kept, *new]
    # The oldest that are over go: one that is still slow would be new again, with another Event.
    over = [each for each in changed if each.until is not None]
    dropped = over[: max(0, len(changed) - HISTORY_LIMIT)]
    changed = [each for each in changed if each not in dropped]
    if changed != (status.current.stragglers or []):
        status.set(stragglers=changed)

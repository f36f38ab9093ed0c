"""Incidents that the trainer reports, merged with those that the operator observed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_contract.incident import ReportedIncident
from megatron_contract.progress import ProgressReport

from megatron_operator.api.recovery_status import Incident, LostSeconds, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import incident_history
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE, cut

STOP: Final = "stop"
"""Kind of a report of pods that were ended by SIGTERM."""
KINDS: Final = {"rank": "rank", "pod": "pod", "hang": "hang", "loss": "loss", "store": "pod", STOP: "pod"}
"""Kinds in the trainer's report -> kinds in the status."""
OBSERVED_KINDS: Final = frozenset({"pod", "node", "gang", "resize", "maintenance"})
"""Kinds that the operator observes itself."""
NODE_KNOWN_KINDS: Final = frozenset({"rank", "hang", "loss"})
"""Kinds after which the pod still exists, so that its node is known."""
LONGEST_SAVE: Final = 1800.0
"""Seconds between the decision to move and the end of the pods that save before they move."""
CLOCK_SKEW: Final = 60.0
"""Seconds by which the clocks of nodes and operator, and the moments of detection, may differ."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where a pod of the gang runs."""

    pod: str
    """Without the job's name: `worker-3`."""
    node: str | None
    since: float = 0.0
    """When the pod was bound to the node, seconds since the epoch."""

    def existed_at(self, time: float) -> bool:
        """Whether an incident at this time happened to this pod, not to one that it replaced."""
        return self.since <= time


def add_reported_incidents(
    recovery: RecoveryStatus,
    incidents: Sequence[ReportedIncident],
    placement: Mapping[int, PodPlacement],
    *,
    bound_at: float | None,
    checkpoint: int | None,
    job_began: float = 0.0,
) -> RecoveryStatus:
    """Add the `incidents` of a progress report; the same ones again change nothing.

    An incident that the operator observed as well (a replaced pod, a gang restart) is not added twice: it
    began between its detection by the trainer and the next rendezvous. Pods that were stopped before the job
    began are no incident: the run was suspended, edited, or preempted by its queue.

    Args:
        incidents: Newest last.
        placement: The gang's pods by node rank.
        bound_at: When the last of these pods was bound, seconds since the epoch; None while one is not.
        checkpoint: Iteration of the newest checkpoint.
        job_began: As `RunSnapshot.job_began`; 0 where there is no job.
    """
    for report in incidents:
        paused = _stopped_before(report, job_began)
        known, scheduled_from = _matching(recovery, report, paused=paused), report.detected_at
        if known is None or paused:
            # Nothing is lost to it while there is no job.
            scheduled_from = max(scheduled_from, job_began)
        if known is None:
            if paused or _dropped_from_history(recovery, report):
                continue
            recovery = _append(recovery, report, placement, checkpoint)
            known = incident_history.newest(recovery)
            assert known is not None, "an incident has just been appended"
        recovery = _update(recovery, known, report, placement, scheduled_from, bound_at)
    return recovery


def precedes_recipe(recipe: Mapping[str, Any], time: float) -> bool:
    """Whether `time`, Unix seconds of a pod, is from before the recipe was created.

    The journal beside the checkpoints outlives a recipe, so pods report what happened to an earlier one of
    its name too.
    """
    created = seconds(recipe["metadata"].get("creationTimestamp"))
    return created is not None and time < created - CLOCK_SKEW


def goodput(report: ProgressReport, now: float) -> float | None:
    """Step time of kept iterations over wall time since the first start, four digits; None when not known."""
    useful, started = report.useful_seconds, report.first_started_at
    if useful is None or started is None or now <= started:
        return None
    return round(min(1.0, useful / (now - started)), 4)


def _stopped_before(report: ReportedIncident, job_began: float) -> bool:
    """Whether pods were stopped before the job began. The operator observes which of its own are replaced."""
    return report.kind == STOP and report.detected_at < job_began + CLOCK_SKEW


def _matching(recovery: RecoveryStatus, report: ReportedIncident, *, paused: bool) -> Incident | None:
    """The incident in the status that the report describes; `paused` is as `_stopped_before` has it."""
    same = [each for each in recovery.history if each.generation == report.generation]
    if same:
        return same[-1]
    for each in reversed(recovery.history):
        if each.generation is not None and each.generation < report.generation:
            return None
        if each.generation is None and each.kind in OBSERVED_KINDS and _is_of(each, report, paused=paused):
            return each
    return None


def _is_of(observed: Incident, report: ReportedIncident, *, paused: bool) -> bool:
    """Whether the operator observed the incident that the report describes, or one that it is a part of."""
    began, recovered = seconds(observed.time) or 0.0, seconds(observed.recovered_at)
    if report.met_at is not None and began > report.met_at + (0.0 if paused else CLOCK_SKEW):
        return False
    # Pods that are stopped while the run recovers, or so that it is resized, interrupt it no second time.
    if paused and (recovered is None or recovered >= report.detected_at):
        return True
    # The pods of a move are stopped, and save first.
    saves = observed.kind == "maintenance" and KINDS.get(report.kind, "pod") == "pod"
    return began >= report.detected_at - (LONGEST_SAVE if saves else CLOCK_SKEW)


def _dropped_from_history(recovery: RecoveryStatus, report: ReportedIncident) -> bool:
    """Whether the incident is older than the oldest one that the status keeps."""
    generation = report.generation
    return any(each.generation is not None and each.generation > generation for each in recovery.history)


def _append(
    recovery: RecoveryStatus,
    report: ReportedIncident,
    placement: Mapping[int, PodPlacement],
    checkpoint: int | None,
) -> RecoveryStatus:
    kind = KINDS.get(report.kind, "pod")
    place = _placement_of(report, placement)
    node_known = place is not None and kind in NODE_KNOWN_KINDS and place.existed_at(report.detected_at)
    node = place.node if place is not None and node_known else None
    recovery = incident_history.append(
        recovery,
        time=timestamp(report.detected_at),
        kind=kind,
        cause=report.cause or kind,
        pod=place and place.pod,
        node=node,
        rank=report.rank,
    )
    # A report may come late: after the checkpoint that it resumed from, a newer one restores the budget.
    if kind == "hang" and (checkpoint is None or checkpoint <= (report.resumed_from or 0)):
        # The pods stay, so nothing else counts a hang, and repeated hangs must spend the budget.
        cause = recovery.history[-1].cause
        before = recovery.restarts_since_checkpoint
        recovery = recovery.model_copy(
            update={
                "restarts_since_checkpoint": before + 1,
                "first_cause": recovery.first_cause if before else cause,
                "last_cause": cause,
                "checkpoint_iteration": checkpoint,
            }
        )
    return recovery


def _update(
    recovery: RecoveryStatus,
    known: Incident,
    report: ReportedIncident,
    placement: Mapping[int, PodPlacement],
    scheduled_from: float,
    bound_at: float | None,
) -> RecoveryStatus:
    resumed, first_step = report.resumed_from, report.first_step_at
    iteration = known.iteration if report.iteration is None else report.iteration
    place = _placement_of(report, placement)
    return incident_history.change(
        recovery,
        known.number,
        generation=report.generation,
        cause=_cause(known, report),
        iteration=iteration,
        resumed_from=resumed,
        lost_iterations=max(0, (iteration or 0) - (resumed or 0)),
        pod=known.pod or (place.pod if place is not None and known.kind != "gang" else None),
        rank=known.rank if known.rank is not None else report.rank,
        seconds=_lost_seconds(known, report, scheduled_from, bound_at),
        recovered_at=known.recovered_at if first_step is None else timestamp(first_step),
    )


def _placement_of(report: ReportedIncident, placement: Mapping[int, PodPlacement]) -> PodPlacement | None:
    return None if report.node_rank is None else placement.get(report.node_rank)


def _cause(known: Incident, report: ReportedIncident) -> str:
    """Only the trainer knows which rank hung, so its cause completes that of a gang restart."""
    if known.kind != "gang" or report.kind != "hang" or cut(report.cause, LONGEST_CAUSE // 2) in known.cause:
        return known.cause
    return f"{known.cause}; {report.cause}"


def _lost_seconds(
    known: Incident, report: ReportedIncident, scheduled_from: float, bound_at: float | None
) -> LostSeconds:
    met = report.met_at
    update: dict[str, float | None] = {"detect": _duration(report.last_step_at, report.detected_at)}
    if known.seconds.start is None and met is not None:
        rescheduled = known.kind in OBSERVED_KINDS and bound_at is not None
        bound = min(max(bound_at or 0.0, scheduled_from), met) if rescheduled else scheduled_from
        update |= {"schedule": _duration(scheduled_from, bound), "start": _duration(bound, met)}
    update["load"] = _duration(met, report.first_step_at)
    update["redo"] = _duration(report.first_step_at, report.caught_up_at)
    return known.seconds.model_copy(update={n: value for n, value in update.items() if value is not None})


def _duration(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 2)

"""What the trainer tells of its incidents, brought together with what the operator saw. No I/O.

The format is that of `/progress`: `incidents`, newest last, each written down when the pods met again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.status import Incident, LostSeconds, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import incident_history
from megatron_operator.lifecycle.incidents import blamed

KINDS: Final = {"rank": "rank", "pod": "pod", "hang": "hang", "loss": "loss", "store": "pod", "stop": "pod"}
"""Kinds of the trainer to those of the status."""
OPERATORS_OWN: Final = frozenset({"pod", "node", "gang", "resize"})
ON_ITS_NODE: Final = frozenset({"rank", "hang", "loss"})
"""Kinds after which the pod is still there, so that its node is known."""
SKEW: Final = 60.0
"""Seconds by which clocks of nodes and operator, and what they notice first, may differ."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod of the gang is."""

    pod: str
    """Without the job's name: `worker-3`."""
    node: str | None
    since: float = 0.0
    """When the pod was bound to it, seconds since the epoch."""

    def was_there(self, at: float) -> bool:
        """Whether it is this pod, not one that it replaced, that something at that time happened to."""
        return self.since <= at


def reported(
    recovery: RecoveryStatus,
    incidents: Sequence[Mapping[str, Any]],
    placement: Mapping[int, Place],
    *,
    bound_at: float | None,
    checkpoint: int | None,
) -> RecoveryStatus:
    """Take in `incidents` of `/progress`; the same ones again change nothing.

    One that the operator saw from outside (a pod replaced, a gang started anew) is the same incident, told
    by both: it began between the trainer's noticing it and the pods' meeting.

    Args:
        placement: Pods of the gang now, by node rank.
        bound_at: When the last of these pods got its node, seconds since the epoch; None while one has none.
        checkpoint: Iteration of the newest checkpoint.
    """
    for told in incidents:
        if not isinstance(told.get("generation"), int) or not isinstance(told.get("detectedAt"), int | float):
            continue
        known = _known(recovery, told)
        if known is None:
            if _forgotten(recovery, told):
                continue
            recovery = _new(recovery, told, placement, checkpoint)
            known = incident_history.newest(recovery)
            assert known is not None, "an incident has just been written"
        recovery = _tell(recovery, known, told, placement, bound_at)
    return recovery


def goodput(report: Mapping[str, Any], now: float) -> float | None:
    """Step time of kept iterations over wall time since the first start, four digits; None when not told."""
    useful, begun = report.get("usefulSeconds"), report.get("firstStartedAt")
    if not isinstance(useful, int | float) or not isinstance(begun, int | float) or now <= begun:
        return None
    return round(min(1.0, useful / (now - begun)), 4)


def _known(recovery: RecoveryStatus, told: Mapping[str, Any]) -> Incident | None:
    """The incident of the status that this one is."""
    same = [each for each in recovery.history if each.generation == told["generation"]]
    if same:
        return same[-1]
    for each in reversed(recovery.history):
        if each.generation is not None and each.generation < told["generation"]:
            return None
        if each.generation is None and each.kind in OPERATORS_OWN:
            began = seconds(each.time) or 0.0
            met = told.get("metAt")
            if told["detectedAt"] - SKEW <= began and (met is None or began <= met + SKEW):
                return each
    return None


def _forgotten(recovery: RecoveryStatus, told: Mapping[str, Any]) -> bool:
    """Whether it is older than what the status still keeps."""
    generation = told["generation"]
    return any(each.generation is not None and each.generation > generation for each in recovery.history)


def _new(
    recovery: RecoveryStatus,
    told: Mapping[str, Any],
    placement: Mapping[int, Place],
    checkpoint: int | None,
) -> RecoveryStatus:
    kind = KINDS.get(str(told.get("kind")), "pod")
    place = _place(told, placement)
    on_its_node = place is not None and kind in ON_ITS_NODE and place.was_there(told["detectedAt"])
    node = place.node if place is not None and on_its_node else None
    recovery = incident_history.append(
        recovery,
        time=timestamp(told["detectedAt"]),
        kind=kind,
        cause=str(told.get("cause") or kind),
        pod=place and place.pod,
        node=node,
        rank=told.get("rank"),
    )
    if node is not None and kind != "loss":
        recovery = blamed(recovery, node)
    if kind == "hang":
        # Pods stay, so nothing else counts it; a hang that comes again and again must end.
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


def _tell(
    recovery: RecoveryStatus,
    known: Incident,
    told: Mapping[str, Any],
    placement: Mapping[int, Place],
    bound_at: float | None,
) -> RecoveryStatus:
    resumed = told.get("resumedFrom")
    iteration = told["iteration"] if isinstance(told.get("iteration"), int) else known.iteration
    first = told.get("firstStepAt")
    place = _place(told, placement)
    return incident_history.change(
        recovery,
        known.number,
        generation=told["generation"],
        cause=_cause(known, told),
        iteration=iteration,
        resumed_from=resumed,
        lost_iterations=max(0, (iteration or 0) - (resumed or 0)),
        pod=known.pod or (place.pod if place is not None and known.kind != "gang" else None),
        rank=known.rank if known.rank is not None else told.get("rank"),
        seconds=_parts(known, told, bound_at),
        recovered_at=known.recovered_at if first is None else timestamp(first),
    )


def _place(told: Mapping[str, Any], placement: Mapping[int, Place]) -> Place | None:
    rank = told.get("nodeRank")
    return placement.get(rank) if isinstance(rank, int) else None


def _cause(known: Incident, told: Mapping[str, Any]) -> str:
    """Who hung is known to the trainer alone."""
    cause = str(told.get("cause") or "")
    if known.kind != "gang" or told.get("kind") != "hang" or cause in known.cause:
        return known.cause
    return f"{known.cause}; {cause}"[: incident_history.LONGEST_CAUSE]


def _parts(known: Incident, told: Mapping[str, Any], bound_at: float | None) -> LostSeconds:
    parts = known.seconds
    noticed, last, met = told["detectedAt"], told.get("lastStepAt"), told.get("metAt")
    update: dict[str, float | None] = {"detect": _between(last, noticed)}
    if parts.start is None and met is not None:
        moved = known.kind in OPERATORS_OWN and bound_at is not None
        bound = min(max(bound_at or 0.0, noticed), met) if moved else noticed
        update |= {"schedule": _between(noticed, bound), "start": _between(bound, met)}
    update["load"] = _between(met, told.get("firstStepAt"))
    update["redo"] = _between(told.get("firstStepAt"), told.get("caughtUpAt"))
    return parts.model_copy(update={name: value for name, value in update.items() if value is not None})


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 2)

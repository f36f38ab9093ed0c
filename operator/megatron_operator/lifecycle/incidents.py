"""Incidents that the operator observes itself, and what they cost of the restart budget.

Every function takes `status.recovery` and returns the one to write. Calling one again with facts that are
already recorded changes nothing, except where its docstring states it: an operator that died after
writing the status does what it was about to do, one that died before sees the same facts again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_contract.exit_codes import ExitCode

from megatron_operator.api.recovery_status import ElasticStatus, Incident, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import incident_history
from megatron_operator.lifecycle.node_evidence import NODE_LOST, SAME_FAILURE, add_evidence
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.reported_incidents import OBSERVED_KINDS
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE, cut


@dataclass(frozen=True, slots=True)
class PodReplacement:
    """A pod that was replaced by a new one."""

    pod: str
    """Without the job's name: `worker-3`."""
    end: PodEnd | None
    """How it ended; None when that was not observed."""
    ran: bool = True
    """False for a replacement that was itself replaced before a container can have started."""
    created: str | None = None
    """When the new pod was created, RFC 3339; None: not known."""


def pods_replaced(
    recovery: RecoveryStatus,
    replaced: Sequence[PodReplacement],
    now: float,
    *,
    checkpoint: int | None,
    iteration: int | None,
) -> RecoveryStatus:
    """Record that the training-operator replaced pods; to be called once for each of them.

    Pods lost together are one incident and cost one restart of the budget. Pods that were drained, preempted
    or terminated cost none, and neither do those that ended because a peer is being replaced or that never
    ran: a training-operator whose deletion got no answer deletes by name again, which hits the new pod.

    Args:
        now: Seconds since the epoch.
        checkpoint: Iteration of the newest checkpoint.
        iteration: The last iteration that the run is known to have completed.
    """
    first, ends = _first_cause(replaced), [each.end for each in replaced]
    open_ = incident_history.unrecovered(recovery) or _recovered_meanwhile(recovery, replaced)
    costs = _spends_budget(recovery, replaced)
    saved = [end.checkpoint_iteration for end in ends if end is not None]
    # Also of a save after the last poll of the progress.
    checkpoint = max((each for each in (checkpoint, *saved) if each is not None), default=None)
    recovery = checkpoint_saved(recovery, checkpoint)
    if open_ is not None and _same_failure(recovery, open_, replaced, now):
        loss_known = open_.node is not None or _counted(recovery, open_)
        recovery = add_evidence_of(recovery, ends, now, with_losses=not loss_known)
        recovery = _refine(recovery, open_, first)
        if _counted(recovery, open_):
            return recovery
    else:
        recovery = add_evidence_of(recovery, ends, now, with_losses=True)
        recovery = incident_history.append(
            recovery,
            time=timestamp(now),
            kind="node" if first.end is not None and first.end.node_lost else "pod",
            cause=_cause(replaced),
            pod=first.pod,
            node=first.end and first.end.node,
            rank=first.end and first.end.rank,
            exit_code=first.end and first.end.exit_code,
            iteration=iteration,
        )
    last = incident_history.newest(recovery)
    assert last is not None, "an incident has just been appended"
    return _count_restart(recovery, last.cause, now, checkpoint, cost=int(costs))


def node_lost(
    recovery: RecoveryStatus,
    lost: Sequence[PodReplacement],
    cause: str,
    now: float,
    *,
    iteration: int | None,
) -> RecoveryStatus:
    """Record that pods are about to be force-deleted because their node is unreachable.

    `pods_replaced` follows. An open incident of one of these pods becomes this one.
    """
    first = lost[0]
    open_ = incident_history.unrecovered(recovery)
    node = first.end and first.end.node
    if open_ is not None and open_.kind in ("pod", "node") and open_.pod in {each.pod for each in lost}:
        if open_.kind == "node":
            return recovery
        if open_.node is None:
            recovery = _count_lost_node(recovery, lost, cause, now)
        return incident_history.change(
            recovery, open_.number, kind="node", cause=cause, node=open_.node or node
        )
    recovery = _count_lost_node(recovery, lost, cause, now)
    return incident_history.append(
        recovery,
        time=timestamp(now),
        kind="node",
        cause=cause,
        pod=first.pod,
        node=node,
        iteration=iteration,
    )


def gang_restarted(
    recovery: RecoveryStatus,
    cause: str,
    now: float,
    *,
    checkpoint: int | None,
    iteration: int | None,
    hang: bool = False,
) -> RecoveryStatus:
    """Record that the operator restarts all pods. Not to be called again for the same decision.

    `now` is in Unix seconds, `checkpoint` the iteration of the newest complete checkpoint, `iteration` the
    last one that was reported; None: not known. `hang`: whether the pods hang.
    """
    recovery = incident_history.append(
        recovery, time=timestamp(now), kind="gang", cause=cause, iteration=iteration, hang=hang or None
    )
    return _count_restart(recovery, cause, now, checkpoint, cost=1)


def resized(
    recovery: RecoveryStatus,
    count: int,
    requested: int,
    cause: str,
    now: float,
    *,
    iteration: int | None,
) -> RecoveryStatus:
    """Record that the run continues on `count` of the `requested` accelerators; costs no budget."""
    fewer = (
        ElasticStatus(count=count, since=timestamp(now), reason=cut(cause, LONGEST_CAUSE))
        if count < requested
        else None
    )
    return resized_by_edit(recovery, cause, now, iteration=iteration).model_copy(
        update={"elastic": fewer, "last_resize_time": timestamp(now), "waiting_since": None}
    )


def resized_by_edit(
    recovery: RecoveryStatus, cause: str, now: float, *, iteration: int | None
) -> RecoveryStatus:
    """Record that the user changed the count; a resize by the operator need not wait because of it."""
    return incident_history.append(
        recovery, time=timestamp(now), kind="resize", cause=cause, iteration=iteration
    )


def recovered(recovery: RecoveryStatus, now: float, *, resumed_from: int | None) -> RecoveryStatus:
    """Record that the whole gang trains, which ends the open incident.

    `now` is in Unix seconds, `resumed_from` the iteration from which it trains; None: from the beginning.
    """
    open_ = incident_history.unrecovered(recovery)
    if open_ is None:
        return recovery
    lost = max(0, (open_.iteration or 0) - (resumed_from or 0))
    return incident_history.change(
        recovery,
        open_.number,
        recovered_at=timestamp(now),
        resumed_from=resumed_from,
        lost_iterations=lost,
    )


def interrupted_at(recovery: RecoveryStatus, reached: int | None, *, progress: str | None) -> RecoveryStatus:
    """Raise the iteration of an open incident to the one that the run had reached.

    An operator that has just started records an incident before a pod has answered it. Then the status is
    behind, and surviving pods that report a later iteration have not trained since.

    Args:
        reached: The last iteration that is known from before the incident.
        progress: The time of the progress in the status; once it is later than the incident, pods answered.
    """
    open_ = incident_history.unrecovered(recovery)
    if open_ is None or open_.kind not in OBSERVED_KINDS or open_.generation is not None or reached is None:
        return recovery
    if (seconds(progress) or 0.0) >= (seconds(open_.time) or 0.0) or reached <= (open_.iteration or 0):
        return recovery
    return incident_history.change(recovery, open_.number, iteration=reached)


def checkpoint_saved(recovery: RecoveryStatus, iteration: int | None) -> RecoveryStatus:
    """Restore the whole budget once there is a checkpoint newer than the one at the last restart."""
    if not recovery.restarts_since_checkpoint or iteration is None:
        return recovery
    if recovery.checkpoint_iteration is not None and iteration <= recovery.checkpoint_iteration:
        return recovery
    return recovery.model_copy(
        update={"restarts_since_checkpoint": 0, "first_cause": None, "checkpoint_iteration": iteration}
    )


def _same_failure(
    recovery: RecoveryStatus, open_: Incident, replaced: Sequence[PodReplacement], now: float
) -> bool:
    pods = {each.pod for each in replaced}
    if open_.kind not in ("pod", "node"):
        return False
    if not _counted(recovery, open_):
        return open_.pod is None or open_.pod in pods
    if recovery.waiting_since is not None and not any(_at_fault(each) for each in replaced):
        return True
    if open_.pod in pods:
        return not any(each.ran for each in replaced)
    return now - (seconds(recovery.last_restart_time) or 0.0) <= SAME_FAILURE


def _recovered_meanwhile(recovery: RecoveryStatus, replaced: Sequence[PodReplacement]) -> Incident | None:
    """The incident from which the run has recovered with these new pods, if none was counted for it yet.

    The pods may train again before the operator sees that they are new.
    """
    last = incident_history.newest(recovery)
    if last is None or last.recovered_at is None or last.kind not in ("pod", "node"):
        return None
    took_part = all(each.created is not None and each.created <= last.recovered_at for each in replaced)
    return last if took_part and not _counted(recovery, last) else None


def _counted(recovery: RecoveryStatus, open_: Incident) -> bool:
    """Whether a restart was counted since the incident began."""
    return (recovery.last_restart_time or "") >= open_.time


def _at_fault(each: PodReplacement) -> bool:
    """Whether the pod may have ended by itself, not because of a disruption or a lost peer."""
    return each.end is None or (each.end.own_fault and not each.end.voluntary)


def _spends_budget(recovery: RecoveryStatus, replaced: Sequence[PodReplacement]) -> bool:
    """Whether the replacement costs a restart of the budget.

    A pod that saved a checkpoint on SIGTERM made progress and costs nothing. Pods that only lost their peers
    cost a restart unless a pod waits for capacity: otherwise they could replace each other without end.
    """
    ends = [each.end for each in replaced if _at_fault(each)]
    if ends:
        return any(end is None or not _made_progress(recovery, end) for end in ends)
    disrupted = any(each.end is not None and each.end.voluntary for each in replaced)
    return not disrupted and recovery.waiting_since is None


def _made_progress(recovery: RecoveryStatus, end: PodEnd) -> bool:
    if end.exit_code != ExitCode.TERMINATED or end.checkpoint_iteration is None:
        return False
    return end.checkpoint_iteration > (recovery.checkpoint_iteration or 0)


def _count_restart(
    recovery: RecoveryStatus, cause: str, now: float, checkpoint: int | None, *, cost: int
) -> RecoveryStatus:
    before, cause = recovery.restarts_since_checkpoint, cut(cause, LONGEST_CAUSE)
    return recovery.model_copy(
        update={
            "restarts": recovery.restarts + 1,
            "restarts_since_checkpoint": before + cost,
            "first_cause": recovery.first_cause if before or not cost else cause,
            "last_cause": cause,
            "last_restart_time": timestamp(now),
            "checkpoint_iteration": checkpoint,
        }
    )


def _refine(recovery: RecoveryStatus, open_: Incident, first: PodReplacement) -> RecoveryStatus:
    """Name the pod that caused an incident, if only its peers were known to have ended so far."""
    end = first.end
    if end is None or not _at_fault(first) or open_.exit_code not in (None, ExitCode.PEER_LOST):
        return recovery
    cause = open_.cause if open_.kind == "node" else cut(end.cause, LONGEST_CAUSE)
    causes = {name: cause for name in ("first_cause", "last_cause") if getattr(recovery, name) == open_.cause}
    return incident_history.change(
        recovery.model_copy(update=causes),
        open_.number,
        kind="node" if end.node_lost else open_.kind,
        cause=cause,
        pod=first.pod,
        node=end.node or open_.node,
        rank=end.rank if end.rank is not None else open_.rank,
        exit_code=end.exit_code,
    )


def add_evidence_of(
    recovery: RecoveryStatus, ends: Iterable[PodEnd | None], now: float, *, with_losses: bool = False
) -> RecoveryStatus:
    """Add what the ends of pods show about their nodes; several nodes lost at once are no node's fault."""
    found = {
        end.node: (evidence, end.cause)
        for end in ends
        if end is not None and end.node and (evidence := _evidence(end))
    }
    lost = {node for node, (evidence, _) in found.items() if evidence == NODE_LOST}
    for node, (evidence, cause) in sorted(found.items()):
        if node not in lost or (with_losses and len(lost) == 1):
            recovery = add_evidence(recovery, node, evidence, cause, now)
    return recovery


def _evidence(end: PodEnd) -> str | None:
    return NODE_LOST if end.node_lost else end.evidence


def _count_lost_node(
    recovery: RecoveryStatus, lost: Sequence[PodReplacement], cause: str, now: float
) -> RecoveryStatus:
    nodes = {each.end.node for each in lost if each.end is not None and each.end.node}
    return add_evidence(recovery, nodes.pop(), NODE_LOST, cause, now) if len(nodes) == 1 else recovery


def _first_cause(replaced: Sequence[PodReplacement]) -> PodReplacement:
    """The pod that caused the failure: one at fault, then one whose end is known, then no lost peer."""
    return sorted(replaced, key=lambda each: (not _at_fault(each), each.end is None, _lost_peer(each)))[0]


def _lost_peer(each: PodReplacement) -> bool:
    return each.end is not None and not each.end.own_fault


def _cause(replaced: Sequence[PodReplacement]) -> str:
    first = _first_cause(replaced)
    if first.end is not None:
        return first.end.cause
    return f"{', '.join(each.pod for each in replaced)}: pod was lost and replaced"

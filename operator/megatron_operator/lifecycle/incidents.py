"""What the operator itself sees happen to a run, as incidents and as the budget's count. No I/O.

Every function takes `status.recovery` and gives the one to be written. Calling one again with what it has
already taken in changes nothing but where its text says so: an operator that died after writing the status
does what it was about to do, one that died before sees the same again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from megatron_contract.exit_codes import ExitCode

from megatron_operator.api.status import ElasticStatus, Incident, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import incident_history
from megatron_operator.lifecycle.pod_termination import PodEnd

ONE_FAILURE: Final = 60.0
"""Seconds within which further pods that are replaced went for the same reason as the first."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A pod whose place another one has taken."""

    pod: str
    """Without the job's name: `worker-3`."""
    end: PodEnd | None
    """How it ended; None when nobody saw it."""


def pods_replaced(
    recovery: RecoveryStatus,
    replaced: Sequence[Replaced],
    now: float,
    *,
    checkpoint: int | None,
    iteration: int | None,
) -> RecoveryStatus:
    """Pods were replaced by the training-operator; to be called once for each of them.

    Pods that went together are one incident and cost one restart of the budget. Those that were drained,
    preempted or told to stop cost none, nor do those that ended for want of a peer that is being replaced.

    Args:
        now: Seconds since the epoch.
        checkpoint: Iteration of the newest checkpoint.
        iteration: Last one that the run was seen to do.
    """
    first = _first(replaced)
    open_ = incident_history.unrecovered(recovery)
    costs = _costs(recovery, replaced)
    if open_ is not None and _same_failure(recovery, open_, replaced, now):
        recovery = _known_better(recovery, open_, first)
        if _counted(recovery, open_):
            return recovery
        recovery = _blame_node(recovery, replaced) if open_.node is None else recovery
    else:
        recovery = _blame_node(recovery, replaced)
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
    assert last is not None, "an incident has just been written"
    return _restarted(recovery, last.cause, now, checkpoint, cost=int(costs))


def node_lost(
    recovery: RecoveryStatus, lost: Sequence[Replaced], cause: str, now: float, *, iteration: int | None
) -> RecoveryStatus:
    """Pods are about to be deleted by force because their node is unreachable; `pods_replaced` follows.

    An incident that is open for one of these pods becomes this one.
    """
    first = lost[0]
    open_ = incident_history.unrecovered(recovery)
    node = first.end and first.end.node
    if open_ is not None and open_.kind in ("pod", "node") and open_.pod in {each.pod for each in lost}:
        if open_.kind == "node":
            return recovery
        if open_.node is None:
            recovery = _blame_node(recovery, lost)
        return incident_history.change(
            recovery, open_.number, kind="node", cause=cause, node=open_.node or node
        )
    recovery = _blame_node(recovery, lost)
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
    recovery: RecoveryStatus, cause: str, now: float, *, checkpoint: int | None, iteration: int | None
) -> RecoveryStatus:
    """The operator starts all pods anew. Not to be called again for the same decision."""
    recovery = incident_history.append(
        recovery, time=timestamp(now), kind="gang", cause=cause, iteration=iteration
    )
    return _restarted(recovery, cause, now, checkpoint, cost=1)


def resized(
    recovery: RecoveryStatus, count: int, asked: int, cause: str, now: float, *, iteration: int | None
) -> RecoveryStatus:
    """The run is laid out on `count` of the `asked` accelerators from now on; costs nothing of the budget."""
    fewer = ElasticStatus(count=count, since=timestamp(now), reason=cause) if count < asked else None
    return resized_by_hand(recovery, cause, now, iteration=iteration).model_copy(
        update={"elastic": fewer, "last_resize_time": timestamp(now), "waiting_since": None}
    )


def resized_by_hand(
    recovery: RecoveryStatus, cause: str, now: float, *, iteration: int | None
) -> RecoveryStatus:
    """Another count was asked for: no reason for an elastic run to wait with a resize of its own."""
    return incident_history.append(
        recovery, time=timestamp(now), kind="resize", cause=cause, iteration=iteration
    )


def trained(recovery: RecoveryStatus, now: float, *, resumed_from: int | None) -> RecoveryStatus:
    """The whole gang was heard training: it has come back from what was open."""
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


def checkpoint_saved(recovery: RecoveryStatus, iteration: int | None) -> RecoveryStatus:
    """A checkpoint newer than the one at the last restart gives the whole budget back."""
    if not recovery.restarts_since_checkpoint or iteration is None:
        return recovery
    if recovery.checkpoint_iteration is not None and iteration <= recovery.checkpoint_iteration:
        return recovery
    return recovery.model_copy(
        update={"restarts_since_checkpoint": 0, "first_cause": None, "checkpoint_iteration": iteration}
    )


def _same_failure(
    recovery: RecoveryStatus, open_: Incident, replaced: Sequence[Replaced], now: float
) -> bool:
    pods = {each.pod for each in replaced}
    if open_.kind not in ("pod", "node"):
        return False
    if not _counted(recovery, open_):
        return open_.pod is None or open_.pod in pods
    if recovery.waiting_since is not None and not any(_guilty(each) for each in replaced):
        return True
    recent = now - (seconds(recovery.last_restart_time) or 0.0) <= ONE_FAILURE
    return recent and open_.pod not in pods


def _counted(recovery: RecoveryStatus, open_: Incident) -> bool:
    """Whether a restart was counted since the incident began."""
    return (recovery.last_restart_time or "") >= open_.time


def _guilty(each: Replaced) -> bool:
    """Whether it may have ended by itself, rather than by a drain or for want of its peers."""
    return each.end is None or (each.end.own_fault and not each.end.voluntary)


def _costs(recovery: RecoveryStatus, replaced: Sequence[Replaced]) -> bool:
    """Whether the budget pays for it.

    A pod that saved a checkpoint on SIGTERM got further, whoever sent the signal. Pods that gave each other
    up although none waits for a place are paid for: free of cost they would do so for ever.
    """
    ends = [each.end for each in replaced if _guilty(each)]
    if ends:
        return any(end is None or not _got_further(recovery, end) for end in ends)
    drained = any(each.end is not None and each.end.voluntary for each in replaced)
    return not drained and recovery.waiting_since is None


def _got_further(recovery: RecoveryStatus, end: PodEnd) -> bool:
    if end.exit_code != ExitCode.TERMINATED or end.checkpoint_iteration is None:
        return False
    return end.checkpoint_iteration > (recovery.checkpoint_iteration or 0)


def _restarted(
    recovery: RecoveryStatus, cause: str, now: float, checkpoint: int | None, *, cost: int
) -> RecoveryStatus:
    before = recovery.restarts_since_checkpoint
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


def _known_better(recovery: RecoveryStatus, open_: Incident, first: Replaced) -> RecoveryStatus:
    """An incident that was told without its pod, or by peers alone, gets the name of who began it."""
    end = first.end
    if end is None or not _guilty(first) or open_.exit_code not in (None, ExitCode.PEER_LOST):
        return recovery
    cause = open_.cause if open_.kind == "node" else end.cause
    told = {name: cause for name in ("first_cause", "last_cause") if getattr(recovery, name) == open_.cause}
    return incident_history.change(
        recovery.model_copy(update=told),
        open_.number,
        kind="node" if end.node_lost else open_.kind,
        cause=cause,
        pod=first.pod,
        node=end.node or open_.node,
        rank=end.rank if end.rank is not None else open_.rank,
        exit_code=end.exit_code,
    )


def _blame_node(recovery: RecoveryStatus, replaced: Sequence[Replaced]) -> RecoveryStatus:
    """Count a failure of the node. Pods that fail on several nodes at once are no node's fault."""
    nodes = {each.end.node for each in replaced if _guilty(each) and each.end is not None and each.end.node}
    if len(nodes) != 1:
        return recovery
    return blamed(recovery, nodes.pop())


def blamed(recovery: RecoveryStatus, node: str) -> RecoveryStatus:
    """One more failure of the run on a node."""
    failures = recovery.node_failures
    return recovery.model_copy(update={"node_failures": failures | {node: failures.get(node, 0) + 1}})


def _first(replaced: Sequence[Replaced]) -> Replaced:
    """The one that began it: whoever was drained or lost a peer did not, and who is known tells more."""
    return sorted(replaced, key=lambda each: (not _guilty(each), each.end is None, _late(each)))[0]


def _late(each: Replaced) -> bool:
    """Whether it only ended for want of its peers."""
    return each.end is not None and not each.end.own_fault


def _cause(replaced: Sequence[Replaced]) -> str:
    first = _first(replaced)
    if first.end is not None:
        return first.end.cause
    return f"{', '.join(each.pod for each in replaced)}: pod was lost and replaced"

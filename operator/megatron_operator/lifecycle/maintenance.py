"""Planned maintenance: a run that trains on a node that will go moves before it does, with a checkpoint.

A node announces it by a condition or taint of `platform.maintenance`, by a label or annotation with the time
at which it starts, or a device that the run uses by a taint of its own. Where only the start is known, or a
condition has a near one beside it, the run trains on until it has just the time to save. For each
announcement a run moves at most once, and only if all of its pods have room on nodes without one; otherwise
it trains on.
"""

from collections.abc import Collection, Mapping
from typing import Final

from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.recovery_status import NodeMaintenance, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import incident_history
from megatron_operator.lifecycle.device_taints import one_text
from megatron_operator.lifecycle.node_health import HOUR, cap, hardware_sign, node_sign, precautions
from megatron_operator.lifecycle.node_state import NodeStatus, StartTime, node_of
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.observation import MaintenanceMove, Room
from megatron_operator.lifecycle.status_size import MAX_NODES

KIND: Final = "maintenance"
"""Kind of the incident of a move."""
NEAR: Final = 86_400.0
"""Seconds until a run would have to leave a node: with fewer the node takes no run that moves."""
STALE: Final = 86_400.0
"""Seconds after its start from which on it announces nothing: who set it may never remove it."""
MOST_PRECAUTIONS: Final = MAX_NODES // 2
"""Nodes without pods of the run that it avoids when it moves: the status has to hold those that it leaves."""
NAMED: Final = 3
"""Nodes that the cause of a move names."""


class MaintenanceAndHardware(Maintenance):
    """Announced maintenance, and signs of failed hardware that move runs as it does."""

    hardware: BadNodes


def moving_rules(maintenance: Maintenance, bad_nodes: BadNodes) -> Maintenance:
    """What moves a run off a node."""
    if not bad_nodes.move_runs:
        return maintenance
    return MaintenanceAndHardware(**dict(maintenance), hardware=bad_nodes)


def _urgent_sign(node: NodeStatus, rules: Maintenance) -> tuple[str, str] | None:
    """What waits for no start time: a taint, or a sign of failed hardware."""
    found = node_sign(node, (), rules.taints)
    if found is None and isinstance(rules, MaintenanceAndHardware):
        return hardware_sign(node, rules.hardware)
    return found


def maintenance_sign(node: NodeStatus, rules: Maintenance, now: float) -> str | None:
    """What announces maintenance of a node or its devices; None if nothing does."""
    found = node_sign(node, rules.conditions, ()) or _urgent_sign(node, rules)
    if found is not None:
        return found[1]
    if node.devices and rules.device_taints:
        return one_text(node.devices)
    first = _first_start(node, now)
    return None if first is None else first.sign


def maintenance_start(node: NodeStatus, rules: Maintenance, now: float, grace: float = 0.0) -> float | None:
    """When maintenance of the node starts, seconds since the epoch; None: now, or not known.

    A taint is set when the node, or the device, is about to go, whenever its maintenance was to start. A
    condition may be set minutes before, so that it belongs to no start that is far away. Failed hardware has
    none.
    """
    first = _first_start(node, now)
    urgent = _urgent_sign(node, rules) is not None or (node.devices and rules.device_taints)
    if first is None or urgent:
        return None
    far = not _is_near(first.time, rules, now, grace)
    return None if far and node_sign(node, rules.conditions, ()) is not None else first.time


def is_near(node: NodeStatus, rules: Maintenance, now: float, grace: float = 0.0) -> bool:
    """Whether the node takes no run that moves, because it would have to leave again soon.

    `grace`: seconds in which the run's pods save a checkpoint and end.
    """
    start = maintenance_start(node, rules, now, grace)
    return start is None or _is_near(start, rules, now, grace)


def _is_near(start: float, rules: Maintenance, now: float, grace: float) -> bool:
    return _departure(start, rules, grace) - now < NEAR


def _departure(start: float, rules: Maintenance, grace: float) -> float:
    """When a run is to leave a node whose maintenance starts then."""
    return start - grace - rules.lead_time


def _first_start(node: NodeStatus, now: float) -> StartTime | None:
    """The first start that is not long past."""
    return min((each for each in node.starts if now - each.time < STALE), default=None)


def judge_maintenance(
    recovery: RecoveryStatus,
    nodes: Mapping[str, NodeStatus] | None,
    placed: Collection[str],
    rules: Maintenance,
    now: float,
    grace: float = 0.0,
) -> RecoveryStatus:
    """Record what the nodes of a run announce, and drop what is over.

    Args:
        recovery: `status.recovery`.
        nodes: Those of the run's and the recorded nodes that exist; None: not known.
        placed: Nodes with pods of the run.
        rules: What announces maintenance.
        now: Seconds since the epoch.
        grace: Seconds in which the run's pods save a checkpoint and end.
    """
    if nodes is None:
        return recovery
    entries: dict[str, NodeMaintenance] = {}
    for name in sorted(
        {*placed, *recovery.maintenance}, key=lambda each: (each not in recovery.maintenance, each)
    ):
        known, node = recovery.maintenance.get(name), nodes.get(name)
        if known is not None and known.precaution and name in placed:
            known = known.model_copy(update={"precaution": None})
        sign = None if node is None else maintenance_sign(node, rules, now)
        if node is None or sign is None or len(entries) >= MAX_NODES:
            continue
        start = maintenance_start(node, rules, now, grace)
        new = NodeMaintenance(
            sign=sign,
            time=timestamp(now),
            starts_at=None if start is None else timestamp(start),
            leave_at=None if start is None else timestamp(_departure(start, rules, grace)),
        )
        if known is not None and known.avoided_at is not None:
            if start is None or new.starts_at == known.starts_at:
                entries[name] = known
                continue
            if _is_near(start, rules, now, grace):
                entries[name] = _updated(known, new)
                continue
            known = None  # What the run left the node for is over, and this is another announcement.
        if name in placed:
            entries[name] = new if known is None else _updated(known, new)
    return (
        recovery if entries == recovery.maintenance else recovery.model_copy(update={"maintenance": entries})
    )


def _updated(known: NodeMaintenance, new: NodeMaintenance) -> NodeMaintenance:
    """The entry, with another time where that has changed, and what announces it then."""
    if (known.starts_at, known.leave_at) == (new.starts_at, new.leave_at):
        return known
    changed = {"sign": new.sign, "starts_at": new.starts_at, "leave_at": new.leave_at}
    if known.starts_at != new.starts_at:
        changed["not_avoided"] = None
    return known.model_copy(update=changed)


def to_leave(recovery: RecoveryStatus, now: float) -> dict[str, str]:
    """Nodes that the run has not left for their maintenance, and is to leave now, and what announces it."""
    return {
        name: each.sign
        for name, each in sorted(recovery.maintenance.items())
        if each.avoided_at is None and (seconds(each.leave_at) or 0.0) <= now
    }


def about_to_start(recovery: RecoveryStatus, now: float) -> frozenset[str]:
    """Nodes on which a new pod would soon end: their maintenance starts within the hour, and it is too late
    to leave them in time."""
    return frozenset(
        name
        for name, each in recovery.maintenance.items()
        if (seconds(each.leave_at) or now) <= now < (seconds(each.starts_at) or 0.0) < now + HOUR
    )


def until_departure(recovery: RecoveryStatus, now: float) -> float | None:
    """Seconds until the run is to leave the next node; None: nothing is to be awaited."""
    due = [seconds(each.leave_at) or 0.0 for each in recovery.maintenance.values() if each.avoided_at is None]
    return min((time - now for time in due if time > now), default=None)


def plan_move(
    recovery: RecoveryStatus,
    room: Room | None,
    size: int,
    rules: BadNodes,
    now: float,
    gone: Collection[str] = (),
) -> MaintenanceMove | None:
    """Which nodes the run would leave now, and what stands against it; None: nothing to decide.

    All of them or none are left: a run that stays on one of them would be interrupted twice. Of the other
    nodes that announce maintenance as many are avoided as the caps allow, chosen again at each move: a pod
    that is placed on one of the rest leaves it when that is due.

    Args:
        recovery: `status.recovery`.
        room: Free places on other nodes; None: not known, so that nothing is decided.
        size: Number of the run's pods.
        rules: The platform's caps.
        now: Seconds since the epoch.
        gone: Avoided nodes that no longer exist.
    """
    leaving = to_leave(recovery, now)
    if not leaving or room is None:
        return None
    recorded = leaving.keys() | set(recovery.nodes_avoided).difference(precautions(recovery))
    needed = recorded.difference(gone)
    share = max(1, int(rules.max_share * room.pool))
    recent = sum(each.kind == KIND and now - (seconds(each.time) or 0.0) < HOUR for each in recovery.history)
    obstacle = None
    if recent >= rules.max_per_hour:
        obstacle = cap(rules, share, by_share=False)
    elif len(needed) > share:
        obstacle = cap(rules, share, by_share=True)
    elif len(recorded) > MAX_NODES:
        obstacle = f"a run avoids at most {MAX_NODES} nodes"
    elif room.pods < size:
        obstacle = f"the other nodes have no room for all {size} pods now"
    others = [each for each in room.announced.items() if each[0] not in needed]
    more = max(0, min(share - len(needed), MAX_NODES - len(recorded), MOST_PRECAUTIONS))
    avoid = {**leaving, **dict(others[:more])}
    return MaintenanceMove(leaving, avoid, obstacle, precautions(recovery) - avoid.keys())


def move_cause(leaving: Mapping[str, str]) -> str:
    """`maintenance of node-1, node-2 and 3 more (node taint karpenter.sh/disrupted)`."""
    names, signs = sorted(leaving), sorted(set(leaving.values()))
    more = len(names) - NAMED
    listed = ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"maintenance of {listed} ({', '.join(signs)})"


def moved(
    recovery: RecoveryStatus, move: MaintenanceMove, pod: str | None, now: float, *, iteration: int | None
) -> RecoveryStatus:
    """Record that the run leaves nodes; costs no restart of the budget.

    Args:
        recovery: `status.recovery`.
        move: What is left and avoided.
        pod: The first pod that moves, without the job's name.
        now: Seconds since the epoch.
        iteration: The last one that was reported.
    """
    since = timestamp(now)
    # What the run's own nodes announce is recorded already.
    new = {name: NodeMaintenance(sign=sign, time=since, precaution=True) for name, sign in move.avoid.items()}
    new |= recovery.maintenance
    entries = {
        name: each.model_copy(update={"avoided_at": since, "not_avoided": None})
        if name in move.avoid
        else each
        for name, each in new.items()
        if name not in move.dropped
    }
    recovery = incident_history.append(
        recovery,
        time=since,
        kind=KIND,
        cause=move_cause(move.leaving),
        pod=pod,
        node=min(move.leaving),
        iteration=iteration,
    )
    return recovery.model_copy(
        update={
            "maintenance": entries,
            "nodes_avoided": sorted(move.avoid.keys() | set(recovery.nodes_avoided) - move.dropped),
        }
    )


def left_behind(recovery: RecoveryStatus, pod: Object) -> bool:
    """Whether a pod is on a node that the run has left for its maintenance, and was there before."""
    entry = recovery.maintenance.get(node_of(pod) or "")
    if entry is None or entry.avoided_at is None or node_of(pod) not in recovery.nodes_avoided:
        return False
    return (seconds(pod["metadata"]["creationTimestamp"]) or 0.0) <= (seconds(entry.avoided_at) or 0.0)


def record_staying(
    recovery: RecoveryStatus, move: MaintenanceMove | None
) -> tuple[RecoveryStatus, dict[str, str]]:
    """Record why the run stays on nodes. Returns the status and the nodes for which that is new, with why."""
    if move is None:
        return recovery, {}
    why = move.obstacle
    changed = {
        name: each.model_copy(update={"not_avoided": why})
        for name, each in recovery.maintenance.items()
        if name in move.leaving and each.not_avoided != why
    }
    if not changed:
        return recovery, {}
    new = {} if why is None else dict.fromkeys(changed, why)
    return recovery.model_copy(update={"maintenance": recovery.maintenance | changed}), new

"""What a node's conditions and taints show about its hardware, and how many nodes a run may avoid."""

from collections.abc import Collection, Mapping
from typing import Final

from megatron_operator.api.platform import BadNodes
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.node_evidence import (
    NODE_CONDITION,
    NODE_TAINT,
    add_evidence,
    forget_evidence,
    reported_by_node,
)
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus
from megatron_operator.lifecycle.observation import AvoidanceLimits

HOUR: Final = 3600.0
"""Seconds of an hour."""


def suspects(recovery: RecoveryStatus) -> frozenset[str]:
    """Nodes whose conditions and taints are to be read: only while the run is interrupted or waits."""
    open_ = unrecovered(recovery)
    if open_ is None and recovery.waiting_since is None:
        return frozenset()
    reported = {name for name, each in recovery.node_evidence.items() if reported_by_node(each)}
    return frozenset(reported | ({open_.node} if open_ is not None and open_.node else set()))


def judge_nodes(
    recovery: RecoveryStatus, nodes: Mapping[str, NodeStatus], rules: BadNodes, now: float
) -> RecoveryStatus:
    """Add evidence that the node of an interruption reports itself; forget it once the node is healthy.

    `now` is in seconds since the epoch.
    """
    open_ = unrecovered(recovery)
    for name, node in sorted(nodes.items()):
        sign, known = hardware_sign(node, rules), recovery.node_evidence.get(name)
        if sign is not None and open_ is not None and open_.node == name:
            recovery = add_evidence(recovery, name, *sign, now)
        elif sign is None and known is not None and reported_by_node(known):
            healthy = node.state is NodeState.READY
            recovery = forget_evidence(recovery, name) if healthy else recovery
    return recovery


def hardware_sign(node: NodeStatus, rules: BadNodes) -> tuple[str, str] | None:
    """Evidence and cause from the node's conditions and taints; None if they show nothing."""
    return node_sign(node, rules.conditions, rules.taints)


def node_sign(
    node: NodeStatus, conditions: Collection[str], taints: Collection[str]
) -> tuple[str, str] | None:
    """The first of these conditions (`Type` or `Type=Status`) and keys of taints that the node has.

    Returns its kind, `NodeCondition` or `NodeTaint`, and a text; None if it has none of them.
    """
    signs = {sign if "=" in sign else f"{sign}=True" for sign in conditions}
    for found in sorted(node.conditions & signs):
        return NODE_CONDITION, f"node condition {found}"
    for found in sorted(node.taints & set(taints)):
        return NODE_TAINT, f"node taint {found}"
    return None


def forget_outdated(
    recovery: RecoveryStatus, gone: Collection[str], nodes: Mapping[str, NodeStatus], now: float
) -> RecoveryStatus:
    """Forget the evidence against avoided nodes that are `gone`, or were uncordoned since, as `nodes` show.

    The policy releases them then. Not within an hour after they were avoided, in which they count for
    `maxPerHour`. `now` is in seconds since the epoch.
    """
    avoided = {name: seconds(each.avoided_at) for name, each in recovery.node_evidence.items()}
    uncordoned = {
        name
        for name, since in avoided.items()
        if name in nodes and since is not None and nodes[name].uncordoned > since
    }
    over = {name for name in uncordoned.union(gone) & avoided.keys() if now - (avoided[name] or 0.0) >= HOUR}
    return forget_evidence(recovery, *over) if over else recovery


def precautions(recovery: RecoveryStatus) -> frozenset[str]:
    """Nodes that the run avoids for its next pods alone: they announce maintenance, and it had no pod there.

    They count for no cap, because each move chooses them again.
    """
    entries = recovery.maintenance
    return frozenset(name for name in recovery.nodes_avoided if name in entries and entries[name].precaution)


def avoidance_limits(
    recovery: RecoveryStatus,
    places: Mapping[str, int] | None,
    size: int,
    rules: BadNodes,
    now: float,
    gone: Collection[str] = (),
) -> AvoidanceLimits:
    """How many nodes the run may begin to avoid now.

    Args:
        recovery: `status.recovery`.
        places: Pods of the run that each ready and matching node has room for when it is empty; None where
            nodes may not be read, so that only the gang's own size is known.
        size: Number of the run's pods.
        rules: The platform's caps.
        now: Seconds since the epoch.
        gone: Avoided nodes that no longer exist.
    """
    avoided = set(recovery.nodes_avoided).difference(gone, precautions(recovery))
    recent = sum(
        each.avoided_at is not None and now - (seconds(each.avoided_at) or 0.0) < HOUR
        for each in recovery.node_evidence.values()
    )
    pool = size if places is None else len(places.keys() | avoided)
    share = max(1, int(rules.max_share * pool))
    by_share = share - len(avoided) <= rules.max_per_hour - recent
    count = max(0, min(share - len(avoided), rules.max_per_hour - recent))
    return AvoidanceLimits(count, places, cap(rules, share, by_share=by_share))


def cap(rules: BadNodes, share: int, *, by_share: bool) -> str:
    """The setting that allows no more: `share` nodes of the pool, or the number in an hour."""
    if by_share:
        nodes = "1 node" if share == 1 else f"{share} nodes"
        return f"platform.badNodes.maxShare {rules.max_share:g} of the nodes allows {nodes}"
    return f"platform.badNodes.maxPerHour allows {rules.max_per_hour} in an hour"

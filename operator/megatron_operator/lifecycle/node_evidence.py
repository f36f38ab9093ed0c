"""Evidence that a node's hardware failed. Only this is held against a node; an application's error never is.

Every function takes `status.recovery` and returns the one to write.
"""

import re
from collections.abc import Collection
from typing import Final

from megatron_operator.api.recovery_status import NodeEvidence, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.status_size import MAX_NODES, cut

NODE_LOST: Final = "NodeLost"
"""The node fell silent. A node whose network failed for a minute does too, so several of these are needed."""
NODE_CONDITION: Final = "NodeCondition"
NODE_TAINT: Final = "NodeTaint"
SAME_FAILURE: Final = 60.0
"""Seconds within which the same evidence on another node shows that it follows the run, not the node."""
REMEMBERED: Final = 3600.0
"""Seconds for which evidence that was counted against no node is not taken for new."""
LONGEST_EVIDENCE: Final = 300
"""Characters of the cause that is kept for each node."""


def add_evidence(
    recovery: RecoveryStatus, node: str, evidence: str, cause: str, now: float
) -> RecoveryStatus:
    """Count a failure of a node and keep the evidence.

    Each loss of a node is to be added once; other evidence that is known already changes nothing. The same
    text from two nodes at once follows the run and is counted against neither. `now` is in seconds since the
    epoch.
    """
    known = recovery.node_evidence.get(node)
    new = NodeEvidence(evidence=evidence, cause=cut(cause, LONGEST_EVIDENCE), time=timestamp(now))
    if evidence == NODE_LOST:
        return _count(recovery, node, new if known is None else known)
    if known is not None and (is_conclusive(known) or _repeats(new, known, REMEMBERED)):
        return recovery
    if known is not None and now - (seconds(known.released_at) or 0.0) < REMEMBERED:
        return recovery
    same = {
        n for n, each in recovery.node_evidence.items() if n != node and _repeats(new, each, SAME_FAILURE)
    }
    if not same:
        return _count(recovery, node, new)
    entries = {
        name: each.model_copy(update={"shared": True}) if name in same else each
        for name, each in (recovery.node_evidence | {node: new.model_copy(update={"shared": True})}).items()
    }
    failures = {name: count for name, count in recovery.node_failures.items() if name not in same}
    return recovery.model_copy(update={"node_evidence": entries, "node_failures": failures})


def _count(recovery: RecoveryStatus, node: str, entry: NodeEvidence) -> RecoveryStatus:
    failures = recovery.node_failures | {node: recovery.node_failures.get(node, 0) + 1}
    entries = recovery.node_evidence | {node: entry}
    recovery = recovery.model_copy(update={"node_failures": failures, "node_evidence": entries})
    if len(entries) <= MAX_NODES:
        return recovery
    # Of too many, the node that failed least matters least; avoided nodes stay.
    candidates = entries.keys() - {node} - set(recovery.nodes_avoided) or entries.keys() - {node}
    return forget_evidence(recovery, min(candidates, key=lambda each: (failures.get(each, 0), each)))


def forget_evidence(recovery: RecoveryStatus, *nodes: str) -> RecoveryStatus:
    """Hold nothing against these nodes any longer; those that are avoided are released by the policy."""
    return recovery.model_copy(
        update={
            "node_failures": {n: count for n, count in recovery.node_failures.items() if n not in nodes},
            "node_evidence": {n: each for n, each in recovery.node_evidence.items() if n not in nodes},
        }
    )


def release(recovery: RecoveryStatus, nodes: Collection[str], now: float) -> RecoveryStatus:
    """Use nodes again because the run has no others. `now` is in Unix seconds.

    What a node reports itself stays, but is not held against it for a while: it would be found again at once.
    A node that the run has to leave only later, for maintenance that was announced, is left again then.
    """
    reported = {
        name: each.model_copy(update={"released_at": timestamp(now)})
        for name, each in recovery.node_evidence.items()
        if name in nodes and reported_by_node(each)
    }
    released = forget_evidence(recovery, *nodes)
    announced = {
        name: each.model_copy(update={"avoided_at": None, "not_avoided": None})
        for name, each in recovery.maintenance.items()
        if name in nodes and (seconds(each.leave_at) or 0.0) > now
    }
    return released.model_copy(
        update={
            "node_evidence": released.node_evidence | reported,
            "maintenance": recovery.maintenance | announced,
        }
    )


def reported_by_node(evidence: NodeEvidence) -> bool:
    """Whether it is a condition or a taint of the node."""
    return evidence.evidence in (NODE_CONDITION, NODE_TAINT)


def record_avoided(recovery: RecoveryStatus, nodes: Collection[str], now: float) -> RecoveryStatus:
    """Record that nodes are avoided since `now`, in Unix seconds, unless they already are."""
    entries = {
        name: each.model_copy(update={"avoided_at": timestamp(now)})
        if name in nodes and each.avoided_at is None
        else each
        for name, each in recovery.node_evidence.items()
    }
    return recovery.model_copy(update={"node_evidence": entries})


def to_avoid(recovery: RecoveryStatus, avoid_after: int) -> tuple[str, ...]:
    """Nodes with evidence enough to be avoided that are not avoided yet."""
    if not avoid_after:
        return ()
    return tuple(
        sorted(
            name
            for name, each in recovery.node_evidence.items()
            if name not in recovery.nodes_avoided
            and (is_conclusive(each) or recovery.node_failures.get(name, 0) >= avoid_after)
        )
    )


def is_conclusive(evidence: NodeEvidence) -> bool:
    """Whether one such failure is enough to avoid the node."""
    return evidence.evidence != NODE_LOST and not evidence.shared and evidence.released_at is None


def _repeats(new: NodeEvidence, known: NodeEvidence, within: float) -> bool:
    """Whether both have the same text and are at most `within` seconds apart."""
    apart = (seconds(new.time) or 0.0) - (seconds(known.time) or 0.0)
    same = (new.evidence, _without_place(new.cause)) == (known.evidence, _without_place(known.cause))
    return same and apart <= within


def _without_place(cause: str) -> str:
    """The text of a cause without the names and numbers of pods, ranks and devices."""
    return re.sub(r"\d+", "#", re.sub(r"^(master|worker)-\d+", "", cause))

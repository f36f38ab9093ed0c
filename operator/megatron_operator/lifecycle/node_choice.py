"""Which bad nodes a run may avoid, and why it keeps using the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.lifecycle.status_size import MAX_NODES

if TYPE_CHECKING:
    from megatron_operator.lifecycle.observation import Observation


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Bad nodes that the run does not avoid yet, with the reason for each."""

    avoid: dict[str, str] = field(default_factory=dict)
    """To be avoided now: what is held against them."""
    keep: dict[str, str] = field(default_factory=dict)
    """Not to be avoided: what stands against it."""


def choose_nodes(observation: Observation) -> NodeChoice:
    """Nodes with proven faults, and those lost `recovery.nodes.avoidAfter` times, as the caps allow.

    `Observation.node_choice` has the result.
    """
    bad, history, limits = _bad_nodes(observation), observation.history, observation.avoidance
    choice, left = NodeChoice(), places_left(observation)
    for node, why in bad.items():
        needed = 0 if left is None or limits is None or limits.places is None else limits.places.get(node, 0)
        if len(history.avoided) + len(choice.avoid) >= MAX_NODES:
            choice.keep[node] = f"{MAX_NODES} nodes are avoided, and a run avoids no more"
        elif limits is not None and len(choice.avoid) >= limits.count:
            choice.keep[node] = limits.cap
        elif left is not None and left - needed < observation.size:
            choice.keep[node] = f"the other nodes have no room for all {observation.size} pods"
        else:
            choice.avoid[node] = why
            left = None if left is None else left - needed
    return choice


def places_left(observation: Observation) -> int | None:
    """Pods of the run for which the nodes that it does not avoid have room when empty; None: not known."""
    if observation.avoidance is None or observation.avoidance.places is None:
        return None
    places, avoided = observation.avoidance.places, observation.history.avoided
    return sum(room for node, room in places.items() if node not in avoided)


def record_kept(recovery: RecoveryStatus, keep: dict[str, str]) -> tuple[RecoveryStatus, dict[str, str]]:
    """Record why bad nodes are not avoided. Returns the status and the nodes for which that is new."""
    new = {
        node: why
        for node, why in keep.items()
        if node in recovery.node_evidence and recovery.node_evidence[node].not_avoided != why
    }
    entries = {
        node: each.model_copy(update={"not_avoided": keep.get(node)})
        if each.not_avoided != keep.get(node)
        else each
        for node, each in recovery.node_evidence.items()
    }
    return recovery.model_copy(update={"node_evidence": entries}), new


def _bad_nodes(observation: Observation) -> dict[str, str]:
    """Nodes that are not avoided yet, and what is held against each of them."""
    allowed, history = observation.limits.avoid_after, observation.history
    if not allowed:
        return {}
    bad = {node: why for node, why in sorted(history.proven.items()) if node not in history.avoided}
    return bad | {
        node: f"failed {count} times (recovery.nodes.avoidAfter {allowed})"
        for node, count in sorted(history.node_failures.items())
        if count >= allowed and node not in history.avoided and node not in bad
    }

"""From a snapshot to what the recovery policy decides on, and what the status reports of it beforehand."""

from collections.abc import Mapping

from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.maintenance import (
    about_to_start,
    judge_maintenance,
    plan_move,
    record_staying,
)
from megatron_operator.lifecycle.node_choice import record_kept
from megatron_operator.lifecycle.node_evidence import is_conclusive
from megatron_operator.lifecycle.node_health import avoidance_limits
from megatron_operator.lifecycle.node_state import NodeStatus
from megatron_operator.lifecycle.observation import Capacity, Heartbeat, History, Limits, Observation
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.job_backend import JobPhase


def observe(
    status: StatusBuilder,
    snapshot: RunSnapshot,
    limits: Limits,
    capacity: Capacity,
    rules: BadNodes | None = None,
) -> Observation:
    """What the recovery policy decides on. `rules` are the platform's for bad nodes."""
    rules = rules or BadNodes()
    heartbeat = None
    if snapshot.reading is not None:
        report = snapshot.reading.report
        heartbeat = Heartbeat(
            phase=report.phase,
            iteration=report.iteration,
            step_seconds=report.step_seconds,
            answered=snapshot.reading.answered,
            moved=seconds(status.progress.time),
            unmoved=snapshot.reading.unmoved,
        )
    recovery = status.recovery
    return Observation(
        now=snapshot.now,
        size=snapshot.size,
        pods=snapshot.pod_views,
        heartbeat=heartbeat,
        history=History(
            run_id=status.uid,
            restarts_since_checkpoint=recovery.restarts_since_checkpoint,
            last_restart=seconds(recovery.last_restart_time),
            last_cause=recovery.last_cause,
            first_cause=recovery.first_cause,
            last_resize=seconds(recovery.last_resize_time),
            node_failures=recovery.node_failures,
            proven={
                node: f"has {each.evidence} ({each.cause})"
                for node, each in recovery.node_evidence.items()
                if is_conclusive(each)
            },
            avoided=frozenset(recovery.nodes_avoided),
            cleared=frozenset(recovery.nodes_avoided)
            - recovery.node_evidence.keys()
            - {name for name, each in recovery.maintenance.items() if each.avoided_at is not None},
        ),
        limits=limits,
        ended=snapshot.job_phase is not JobPhase.ACTIVE,
        early_exit=snapshot.early_exit,
        waiting_since=seconds(recovery.waiting_since),
        capacity=capacity.elastic,
        releasable=capacity.releasable_nodes - about_to_start(recovery, snapshot.now),
        in_another_domain=capacity.in_another_domain,
        avoidance=avoidance_limits(
            recovery, capacity.places, snapshot.size, rules, snapshot.now, snapshot.nodes_gone
        ),
        maintenance=plan_move(
            recovery, capacity.room, snapshot.size, rules, snapshot.now, snapshot.nodes_gone
        ),
    )


def judge_announcements(
    status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, rules: Maintenance
) -> None:
    """Record which nodes of the run announce maintenance; none for a run that avoids no nodes."""
    nodes = snapshot.announcing if limits.avoid_after else dict[str, NodeStatus]()
    placed = snapshot.placed_on
    recovery = judge_maintenance(status.recovery, nodes, placed, rules, status.now, snapshot.longest_grace)
    status.set(recovery=recovery)


def report_kept_nodes(
    status: StatusBuilder, observation: Observation, also: Mapping[str, str] | None = None
) -> None:
    """Record bad nodes that a cap or a lack of others keeps in use; an Event for each that is new.

    `also`: further ones, and why.
    """
    recovery, new = record_kept(status.recovery, observation.node_choice.keep | dict(also or {}))
    status.set(recovery=recovery)
    for node, why in new.items():
        evidence = recovery.node_evidence[node]
        text = f"{node} has {evidence.evidence} ({evidence.cause}), but the run does not avoid it: {why}"
        status.add_event(Reason.NODE_NOT_AVOIDED, text, warning=True)
    recovery, new = record_staying(status.recovery, observation.maintenance)
    status.set(recovery=recovery)
    for node, why in new.items():
        sign = recovery.maintenance[node].sign
        text = f"maintenance of {node} is announced ({sign}), but the run stays on it: {why}"
        status.add_event(Reason.NODE_NOT_AVOIDED, text, warning=True)

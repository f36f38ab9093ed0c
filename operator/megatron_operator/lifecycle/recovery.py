"""From the recovery decision to status and actions.

A decision is written into the status before it is executed. What is not executed because the operator died
is found by the next reconcile.
"""

from collections.abc import Collection
from typing import Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.actions import (
    SOON,
    Action,
    AvoidNodes,
    DeleteJob,
    DeletePods,
    DeleteUnboundPods,
    ForceDeletePods,
    PinImage,
    ReplacePods,
    Result,
    SetPriorityClass,
    wait,
)
from megatron_operator.lifecycle.ended_pods import record_ends
from megatron_operator.lifecycle.finished_job import deletion
from megatron_operator.lifecycle.forced_deletion import force_delete
from megatron_operator.lifecycle.incident_history import added, unrecovered
from megatron_operator.lifecycle.incidents import (
    PodReplacement,
    gang_restarted,
    node_lost,
    resized,
    resized_by_edit,
)
from megatron_operator.lifecycle.maintenance import left_behind, moved
from megatron_operator.lifecycle.node_evidence import record_avoided, release
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.observation import MaintenanceMove
from megatron_operator.lifecycle.pod_termination import pod_end, short_name
from megatron_operator.lifecycle.progress_status import end_reports, reached_iteration
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    ChangeDomain,
    Decision,
    Fail,
    ForceDelete,
    Move,
    ReleaseNodes,
    Resize,
    RestartGang,
)
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import REASONS, deleted_up_to
from megatron_operator.manifests import gang_scheduling
from megatron_operator.manifests.affinity import HOSTNAME
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.node_avoidance import avoided, avoided_by

STARTING_RECHECK: Final = 3.0
"""Seconds between two checks of a gang that lacks or loses pods: what blocks them may show in Events only."""
SLOW_RECHECK: Final = 15.0
"""Seconds between two checks of a complete gang that does not run yet, which the watch of pods follows, and
of any gang that has been in its state for `RECENT` seconds."""
SLOWEST_RECHECK: Final = 60.0
"""The same of a complete gang that has waited for ten times as long: hundreds of them wait in a full
cluster."""
GATED_SECONDS: Final = 60.0
"""Age of a pod that still has the scheduling gate of its gang, from which it is replaced."""
RECENT: Final = 60.0
"""Seconds after a change of state for which pods are checked often."""


def awaits_another_job(status: StatusBuilder, snapshot: RunSnapshot) -> bool:
    """Whether the run is to avoid other nodes than its job does, and only another job would."""
    if snapshot.job_phase is not JobPhase.ACTIVE or snapshot.moves_pods or not snapshot.has_templates:
        return False
    return avoided(snapshot.existing_job) != frozenset(status.recovery.nodes_avoided)


def unfinished_actions(
    status: StatusBuilder, snapshot: RunSnapshot, *, keeps_job: bool = False
) -> Result | None:
    """Actions of an earlier decision that are not complete yet; None when there are none.

    `keeps_job`: not to delete the job so that its pods avoid other nodes.
    """
    recovery, job = status.recovery, snapshot.existing_job
    if recovery.outgoing_job == snapshot.job_uid:
        return wait(SOON, "the job is being deleted", [DeleteJob(job)])
    if (before := deleted_up_to(recovery)) is not None:
        old = tuple(pod for pod in snapshot.active_pods if pod["metadata"]["creationTimestamp"] <= before)
        if old:
            return wait(SOON, "the gang is being restarted", [DeletePods(old)])
        new = any(pod["metadata"]["creationTimestamp"] > before for pod in snapshot.pods)
        if snapshot.early_exit is not None and not new:
            # Its Master was deleted, and ended so that the job has succeeded: still the same restart.
            status.set_recovery(outgoing_job=snapshot.job_uid)
            return wait(SOON, "the job is being re-created", [DeleteJob(job)])
    if snapshot.job_phase is not JobPhase.ACTIVE:
        return None
    if ended := snapshot.pods_to_replace:
        # A pod that ended early is taken for complete, and is never replaced.
        status.set(recovery=record_ends(recovery, ended, snapshot.name))
        return wait(SOON, "pods that ended are being replaced", [DeletePods(ended)])
    if left := snapshot.stuck_pods:
        status.set(recovery=record_ends(recovery, left, snapshot.name))
        return wait(SOON, "pods that ended and were not removed are deleted", [force_delete(status, left)])
    avoid = frozenset(recovery.nodes_avoided)
    excluded = avoided(job) if snapshot.has_templates else avoid
    if excluded != avoid:
        elsewhere = _place_elsewhere(status, snapshot, avoid, keeps_job=keeps_job)
        if elsewhere is not None:
            return elsewhere
    # From here on by what new pods get, which are other nodes where the job is yet to be re-created.
    outdated = tuple(
        pod
        for pod in snapshot.unscheduled_pods
        if avoided_by(pod) != excluded or _gated_for_long(pod, status.now)
    )
    leaving = tuple(pod for pod in snapshot.active_pods if left_behind(recovery, pod))
    interrupted = unrecovered(recovery) is not None
    on_avoided = tuple(
        pod
        for pod in snapshot.active_pods
        if interrupted and node_of(pod) in avoid & excluded and pod not in leaving
    )
    misplaced = tuple(pod for pod in on_avoided if not _excludes_its_node(pod))
    for pod in on_avoided:
        if pod not in misplaced:
            text = f"{node_of(pod)} is to be avoided, and got {pod['metadata']['name']}"
            text += f": its label {HOSTNAME} is not its name"
            status.add_event(Reason.NODE_NOT_AVOIDED, text, warning=True)
    replaced: list[Action] = [DeletePods(leaving, saves=True)] if leaving else []
    replaced += [DeletePods(misplaced)] if misplaced else []
    replaced += [DeleteUnboundPods(outdated)] if outdated else []
    if not replaced:
        return None
    # The operator replaces these pods itself, so they do not count as a restart.
    status.set_recovery(pods_as_of=None, gang=None, restart_before=None)
    return wait(SOON, "pods are replaced", replaced)


def _excludes_its_node(pod: Object) -> bool:
    """Whether the pod was bound to a node that its template excludes.

    Another one would be bound there too: nodes are excluded by a label, which need not be their name.
    """
    return node_of(pod) in avoided_by(pod)


def _gated_for_long(pod: Object, now: float) -> bool:
    """Whether a pod has the scheduling gate of its gang since longer than GATED_SECONDS.

    Only when a pod is created is it assigned to its PodGroup, so one from before the policy must be replaced.
    """
    created = seconds(pod["metadata"]["creationTimestamp"])
    return gang_scheduling.is_gated(pod) and created is not None and now - created > GATED_SECONDS


def apply_decision(
    status: StatusBuilder, snapshot: RunSnapshot, decision: Decision, *, keeps_job: bool = False
) -> Result:
    """Record the decision in the status; returns the actions that execute it.

    `keeps_job`: not to delete the job so that its pods avoid other nodes, which the next one then does.
    """
    job, recovery = snapshot.existing_job, status.recovery
    match decision:
        case Fail(cause):
            status.fail(Reason.RESTARTS_SPENT, cause)
            end_reports(status)
            return Result(tuple(deletion(job)))
        case RestartGang(cause, hang):
            return _restart_gang(status, snapshot, cause, hang=hang)
        case ForceDelete(names, cause):
            return _force_delete(status, snapshot, names, cause)
        case Avoid(nodes, _, cause):
            # Pods on these nodes move at the next reconcile, if the run has not recovered by then.
            nodes_avoided = frozenset(recovery.nodes_avoided).union(nodes)
            return _avoid_nodes(status, snapshot, nodes_avoided, cause, keeps_job=keeps_job)
        case ReleaseNodes(nodes, cause):
            status.set(recovery=release(recovery, nodes, status.now))
            nodes_avoided = frozenset(recovery.nodes_avoided).difference(nodes)
            return _avoid_nodes(status, snapshot, nodes_avoided, cause, keeps_job=keeps_job)
        case Resize(count, cause):
            return _resize(status, snapshot, count, cause)
        case Move(move):
            return _move(status, snapshot, move)
        case ChangeDomain(cause):
            status.set_recovery(outgoing_job=snapshot.job_uid, waiting_since=None)
            status.add_event(Reason.DOMAIN_CHANGED, f"continues in another topology domain: {cause}")
            return wait(SOON, "the job is being re-created in another topology domain", [DeleteJob(job)])
        case _:
            actions = (*_template_changes(snapshot), *_replacements(snapshot))
            return Result(actions).within(decision.seconds, decision.reason)


def _template_changes(snapshot: RunSnapshot) -> tuple[PinImage | SetPriorityClass, ...]:
    """What pods get that will replace others. One change at a time: each makes a new version of the job."""
    if (image := snapshot.image_to_pin) is not None:
        return (PinImage(snapshot.existing_job, image),)
    if (name := snapshot.priority_class_to_set) is not None:
        return (SetPriorityClass(snapshot.existing_job, name),)
    return ()


def _replacements(snapshot: RunSnapshot) -> tuple[ReplacePods, ...]:
    """Has pods that somebody deleted replaced at once where the job's controller would wait."""
    if snapshot.job_phase is not JobPhase.ACTIVE or snapshot.backend.REPLACES_PODS:
        return ()
    deleted = tuple(pod for pod in snapshot.pods if is_deleting(pod))
    return (ReplacePods(deleted),) if deleted else ()


def add_incident_events(status: StatusBuilder, before: RecoveryStatus) -> None:
    """Add an Event for each incident that is new, or whose kind has become known, since `before`."""
    known = {each.number: each.kind for each in before.history}
    new = {each.number for each in added(before, status.recovery)}
    for each in status.recovery.history:
        if each.kind in REASONS and (each.number in new or known.get(each.number, each.kind) != each.kind):
            where = f" (on {each.node})" if each.node and each.node not in each.cause else ""
            status.add_event(REASONS[each.kind], f"{each.cause}{where}", warning=True)


def record_edited_count(status: StatusBuilder, snapshot: RunSnapshot, before: int | None, count: int) -> None:
    """Record an incident when an edit changes the run's accelerators from `before` to `count`.

    `before` is read from the job, or from a status that still records a deleted job, so the incident is
    recorded once.
    """
    if before is None or before == count or status.ended:
        return
    cause = f"accelerator.count was edited: {before} before, {count} now"
    reached = reached_iteration(status, snapshot)
    recovery = resized_by_edit(status.recovery, cause, status.now, iteration=reached)
    status.set(recovery=recovery)
    status.add_event(_direction(before, count), f"continues on {count} accelerators: {cause}")


def accelerators_before(status: StatusBuilder, snapshot: RunSnapshot) -> int | None:
    """Accelerators of the run's job, or of a deleted one whose deletion the status does not record."""
    if snapshot.job is not None:
        return snapshot.accelerators
    plan, recorded = status.current.plan, status.current.job is not None
    unrecorded_deletion = recorded and status.recovery.outgoing_job is None
    return plan.world_size if unrecorded_deletion and plan is not None else None


def recheck_delay(status: StatusBuilder, snapshot: RunSnapshot) -> float | None:
    """Seconds until pods that may cause no event are checked again; None while the run trains."""
    if snapshot.all_running and snapshot.reading_is_current:
        return None
    condition = status.condition(Condition.RUNNING)
    changed_at = 0.0 if condition is None else seconds(condition.last_transition_time) or 0.0
    waited = 0.0 if condition is None else status.now - changed_at
    complete = snapshot.gang_hash is not None and not snapshot.deleting_pods
    if waited >= RECENT:
        waits = complete and not snapshot.all_running
        return max(SLOW_RECHECK, min(waited / 10, SLOWEST_RECHECK)) if waits else SLOW_RECHECK
    if snapshot.all_running:
        return SOON
    return SLOW_RECHECK if complete else STARTING_RECHECK


def _direction(before: int, count: int) -> Reason:
    return Reason.SHRUNK if count < before else Reason.GROWN


def _restart_gang(status: StatusBuilder, snapshot: RunSnapshot, cause: str, *, hang: bool) -> Result:
    """The status records which pods are to go, so that a restarted operator continues deleting them."""
    recovery = gang_restarted(
        status.recovery,
        cause,
        status.now,
        checkpoint=status.checkpoint.iteration,
        iteration=status.progress.iteration,
        hang=hang,
    )
    youngest = max((pod["metadata"]["creationTimestamp"] for pod in snapshot.pods), default=None)
    status.set(recovery=recovery)
    status.set_recovery(pods_as_of=None, gang=None, restart_before=youngest)
    _set_interrupted(status, Reason.GANG_RESTARTED, cause)
    if snapshot.job_phase is JobPhase.ACTIVE:
        return wait(SOON, "the gang is being restarted", [DeletePods(snapshot.active_pods)])
    # The training-operator creates no pods for a job that has ended.
    status.set_recovery(outgoing_job=snapshot.job_uid)
    return wait(SOON, "the job is being re-created", [DeleteJob(snapshot.existing_job)])


def _force_delete(status: StatusBuilder, snapshot: RunSnapshot, names: tuple[str, ...], cause: str) -> Result:
    pods = snapshot.pods_named(names)
    lost = [PodReplacement(short_name(pod, snapshot.name), pod_end(pod, snapshot.name)) for pod in pods]
    recovery = node_lost(status.recovery, lost, cause, status.now, iteration=status.progress.iteration)
    status.set(recovery=recovery)
    return wait(SOON, "pods are being replaced", [ForceDeletePods(pods)])


def _avoid_nodes(
    status: StatusBuilder, snapshot: RunSnapshot, nodes: frozenset[str], cause: str, *, keeps_job: bool
) -> Result:
    before = frozenset(status.recovery.nodes_avoided)
    status.set(recovery=record_avoided(status.recovery, nodes, status.now))
    status.set_recovery(nodes_avoided=sorted(nodes))
    if keeps_job:
        return wait(SOON, "the nodes are recorded for the next job")
    if new := sorted(nodes - before):
        status.add_event(Reason.NODE_AVOIDED, f"{', '.join(new)}: {cause}", warning=True)
    if released := sorted(before - nodes):
        status.add_event(Reason.NODE_RELEASED, f"{', '.join(released)}: {cause}")
    return _place_elsewhere(status, snapshot, nodes) or wait(SOON, "the avoided nodes are recorded")


def _place_elsewhere(
    status: StatusBuilder, snapshot: RunSnapshot, nodes: frozenset[str], *, keeps_job: bool = False
) -> Result | None:
    """Make new pods avoid exactly these nodes; None where that waits for the next interruption.

    Where pods cannot move alone the job is re-created, but not while the run trains, nor before the gang
    is whole: a pod that failed counts as a restart once another one has replaced it. Nor is it for nodes
    that were released, of which only pods without a node have need.
    """
    job = snapshot.existing_job
    if snapshot.moves_pods:
        return wait(SOON, "the job's avoided nodes are being patched", [AvoidNodes(job, nodes)])
    if nodes <= avoided(job) and not snapshot.unscheduled_pods:
        return None
    interrupted = unrecovered(status.recovery) is not None or snapshot.unscheduled_pods
    if keeps_job or snapshot.gang_hash is None or not interrupted:
        return None
    status.set_recovery(outgoing_job=snapshot.job_uid)
    return wait(SOON, "the job is being re-created to avoid nodes", [DeleteJob(job)])


def _resize(status: StatusBuilder, snapshot: RunSnapshot, count: int, cause: str) -> Result:
    requested = int(status.spec["accelerator"]["count"])
    iteration = status.progress.iteration
    status.set(recovery=resized(status.recovery, count, requested, cause, status.now, iteration=iteration))
    status.set_recovery(outgoing_job=snapshot.job_uid)
    reason = _direction(snapshot.accelerators, count)
    status.add_event(reason, f"continues on {count} accelerators: {cause}")
    _set_interrupted(status, reason, cause)
    return wait(SOON, "the job is being resized", [DeleteJob(snapshot.existing_job)])


def pods_to_move(snapshot: RunSnapshot, move: MaintenanceMove) -> int:
    """Number of pods that need another place; all of them where the job is re-created."""
    return len(_pods_on(snapshot, move.avoid)) if snapshot.moves_pods else snapshot.size


def _pods_on(snapshot: RunSnapshot, nodes: Collection[str]) -> tuple[Object, ...]:
    return tuple(pod for pod in snapshot.active_pods if node_of(pod) in nodes)


def _move(status: StatusBuilder, snapshot: RunSnapshot, move: MaintenanceMove) -> Result:
    """The pods of these nodes end with their grace period, in which the gang saves; new ones avoid them.

    Also those of the run's other nodes that it avoids from now on, although it would have to leave them only
    later: it saves once for all.
    """
    leaving, job = _pods_on(snapshot, move.avoid), snapshot.existing_job
    due = _pods_on(snapshot, move.leaving)
    first = short_name(due[0], snapshot.name) if due else None
    iteration = status.progress.iteration
    status.set(recovery=moved(status.recovery, move, first, status.now, iteration=iteration))
    _set_interrupted(status, Reason.MOVED_FOR_MAINTENANCE, status.recovery.history[-1].cause)
    nodes = frozenset(status.recovery.nodes_avoided)
    if snapshot.moves_pods:
        # The operator replaces these pods itself, so they do not count as a restart.
        status.set_recovery(pods_as_of=None, gang=None, restart_before=None)
        return wait(
            SOON, "pods move before maintenance", [AvoidNodes(job, nodes), DeletePods(leaving, saves=True)]
        )
    status.set_recovery(outgoing_job=snapshot.job_uid)
    return wait(SOON, "the job is being re-created before maintenance", [DeleteJob(job)])


def _set_interrupted(status: StatusBuilder, reason: Reason, cause: str) -> None:
    status.set(phase=Phase.RECOVERING)
    status.set_condition(Condition.RECOVERING, True, reason, cause)
    status.set_condition(Condition.RUNNING, False, reason, cause)

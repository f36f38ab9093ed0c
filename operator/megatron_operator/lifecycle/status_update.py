"""From a snapshot of a running job to the status: replaced pods, obstacles, progress, the end of the run."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.accepted_spec import exports
from megatron_operator.lifecycle.ended_pods import without_replaced
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.incidents import (
    PodReplacement,
    add_evidence_of,
    checkpoint_saved,
    interrupted_at,
    pods_replaced,
    recovered,
)
from megatron_operator.lifecycle.job_status import queued_message, set_succeeded, set_trained
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.placement import placement_of
from megatron_operator.lifecycle.pod_diagnosis import WITHOUT_CAPACITY, Diagnosis, diagnose
from megatron_operator.lifecycle.pod_termination import PodEnd, pod_end, short_name, termination_message
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.progress_status import (
    TRAINING_PHASES,
    display,
    reached_iteration,
    set_best_checkpoint,
    update_progress,
)
from megatron_operator.lifecycle.reachability import (
    reported_unreachable,
    set_unreachable,
    unreachable_since,
)
from megatron_operator.lifecycle.snapshot import RunSnapshot, bound_since
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import stable_name

REASONS: Final = {
    "rank": Reason.RANK_RESTARTED,
    "pod": Reason.PODS_REPLACED,
    "node": Reason.NODE_LOST,
    "gang": Reason.GANG_RESTARTED,
    "hang": Reason.HANG_FOUND,
    "loss": Reason.LOSS_ROLLED_BACK,
    "maintenance": Reason.MOVED_FOR_MAINTENANCE,
}
"""Kind of incident -> reason of the condition Recovering and of Events. A resize sets Shrunk or Grown."""
LONGEST_UNSTARTED: Final = 5.0
"""Seconds after its creation within which a pod that vanished without an exit code has not run."""
SHORTEST_EVALUATION: Final = 20.0
"""Seconds for which pods report an evaluation before it is a phase: begin and end are a write each."""
SLOW_START_SECONDS: Final = 60
"""From a pod's binding to its node on, after which the status names the pod."""
NO_PROGRESS_KNOWN: Final = "all pods run; no progress is known yet"


def update_status(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Bring the status of a run with a job up to the snapshot."""
    reached = reached_iteration(status, snapshot)
    status.set(recovery=interrupted_at(status.recovery, reached, progress=status.progress.time))
    update_progress(status, snapshot)
    if snapshot.job_phase in (JobPhase.ACTIVE, JobPhase.SUSPENDED):
        # An edit has a job go on that was not deleted when the run failed.
        status.remove_conditions(Condition.FAILED)
    if snapshot.early_exit is not None:
        status.set_condition(Condition.RUNNING, False, Reason.LEFT_EARLY, snapshot.early_exit)
    elif snapshot.job_phase is JobPhase.SUCCEEDED:
        _set_succeeded(status, snapshot)
    elif snapshot.job_phase is JobPhase.FAILED:
        cause = _failure_cause(snapshot) or snapshot.job_message or "the training job failed"
        status.fail(Reason.JOB_FAILED, cause)
    elif snapshot.job_phase is JobPhase.SUSPENDED:
        _set_queued(status, snapshot)
    else:
        status.set(recovery=checkpoint_saved(status.recovery, status.checkpoint.iteration))
        _add_evidence(status, snapshot)
        _count_replacements(status, snapshot, reached)
        if snapshot.gang_hash is not None:
            status.set_recovery(ended_pods={})
        if snapshot.gang_hash is not None and (placement := placement_of(snapshot.active_pods)):
            status.set_recovery(placement=placement)
        _set_running(status, snapshot)


def recorded_early_exit(status: StatusBuilder, job: Object | None) -> str | None:
    """Why this job is not complete although it has succeeded, if that was found before; None otherwise.

    The pod that shows it may be removed before the job is re-created: by a drain, with its node, or by a
    restart of its gang, after which a Master that ends with 0 on SIGTERM completes a PyTorchJob.
    """
    recorded, running = status.current.job, status.condition(Condition.RUNNING)
    if job is None or recorded is None or running is None or recorded.uid != job["metadata"]["uid"]:
        return None
    outgoing = status.recovery.outgoing_job == recorded.uid
    if running.reason == Reason.LEFT_EARLY or (outgoing and running.reason == Reason.GANG_RESTARTED):
        return running.message
    if deleted_up_to(status.recovery) is not None:
        return "the pods were deleted before the run was complete"
    return None


def deleted_up_to(recovery: RecoveryStatus) -> str | None:
    """Creation time up to which the operator deletes the gang's pods; None once a later gang was counted."""
    return recovery.restart_before if recovery.pods_as_of is None else None


def _set_queued(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Report a job that is suspended, by its queue or by somebody.

    The pods that it gets when it is resumed have replaced none: a preemption is no restart.
    """
    status.set(phase=Phase.QUEUED)
    status.set_recovery(pods_as_of=None, gang=None, restart_before=None, waiting_since=None)
    message = queued_message(status, Condition.RUNNING, snapshot.queue, snapshot.held_back)
    status.set_condition(Condition.RUNNING, False, Reason.QUEUED, message)


def uncounted_pods(recovery: RecoveryStatus, snapshot: RunSnapshot) -> tuple[Object, ...]:
    """Pods that are about to be counted: a gang that is complete for the first time, or replacements.

    All pods of the gang where some were replaced in the second in which the others were created: the API
    server's times are whole seconds.
    """
    active, complete = snapshot.active_pods, snapshot.gang_hash is not None
    if recovery.pods_as_of is None:
        return active if complete and not _pods_to_restart(recovery, active) else ()
    new = tuple(pod for pod in active if pod["metadata"]["creationTimestamp"] > recovery.pods_as_of)
    same_second = complete and recovery.gang not in (None, snapshot.gang_hash)
    return active if same_second and not new else new


def replacement_pods(recovery: RecoveryStatus, snapshot: RunSnapshot) -> tuple[Object, ...]:
    """Pods that replaced others: created after every pod of the gang that was last complete."""
    if recovery.pods_as_of is None:
        return ()
    new = uncounted_pods(recovery, snapshot)
    if new and new[0]["metadata"]["creationTimestamp"] <= recovery.pods_as_of:
        known = tuple(pod for pod in new if stable_name(pod) in snapshot.ends)
        return known[:1] or new[-1:]
    return new


def _pods_to_restart(recovery: RecoveryStatus, pods: Iterable[Object]) -> list[Object]:
    """Of these pods those that are still to be deleted because the gang is being restarted."""
    return [pod for pod in pods if pod["metadata"]["creationTimestamp"] <= (recovery.restart_before or "")]


def _add_evidence(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Keep what pods that have ended show about their nodes: the evidence vanishes with the pod."""
    ends = (pod_end(pod, snapshot.name) for pod in snapshot.pods)
    status.set(recovery=add_evidence_of(status.recovery, ends, status.now))


def _count_replacements(status: StatusBuilder, snapshot: RunSnapshot, reached: int | None) -> None:
    """Count pods that replaced others, once each.

    `reached` is the last iteration before the replacement.
    """
    recovery, active, gang = status.recovery, snapshot.active_pods, snapshot.gang_hash
    if not active:
        return
    newest = max(pod["metadata"]["creationTimestamp"] for pod in active)
    if recovery.pods_as_of is None:
        if uncounted_pods(recovery, snapshot):
            # None of them is left to be deleted: a gang that was restarted is new.
            status.set_recovery(pods_as_of=newest, gang=gang, restart_before=None)
        return
    new = replacement_pods(recovery, snapshot)
    if not new:
        if gang is not None and recovery.gang is None:
            status.set_recovery(gang=gang)
        return
    replaced = [_replacement(pod, recovery.pods_as_of, snapshot) for pod in new]
    counted = pods_replaced(
        recovery,
        replaced,
        status.now,
        checkpoint=status.checkpoint.iteration,
        iteration=reached,
    )
    counted = without_replaced(counted, new, snapshot.name)
    status.set(recovery=counted.model_copy(update={"pods_as_of": newest, "gang": gang}))


def _replacement(pod: Object, pods_as_of: str, snapshot: RunSnapshot) -> PodReplacement:
    end = snapshot.ends.get(stable_name(pod))
    age = (seconds(pod["metadata"]["creationTimestamp"]) or 0.0) - (seconds(pods_as_of) or 0.0)
    ran = age > LONGEST_UNSTARTED or (end is not None and end.exit_code is not None)
    created = str(pod["metadata"]["creationTimestamp"])
    return PodReplacement(short_name(pod, snapshot.name), end, ran, created)


def _set_running(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Set phase and conditions of a job that has not ended."""
    if snapshot.finishing:
        return
    _set_recovering(status)
    diagnosis = diagnose(snapshot.active_pods, snapshot.events, snapshot.name)
    _set_waiting_since(status, snapshot, diagnosis)
    if not snapshot.all_running:
        _set_pods_not_running(status, snapshot, diagnosis or _starting(snapshot))
        return
    unreachable = unreachable_since(snapshot)
    if snapshot.reading is None and _reflects_report(status):
        _set_starting_or_recovering(status)
    elif snapshot.reading is None or not snapshot.reading_is_current:
        _set_no_progress_known(status)
    elif unreachable is None:
        _set_progress_known(status, snapshot.reading)
    if unreachable is not None:
        set_unreachable(status, snapshot, unreachable)


def _reflects_report(status: StatusBuilder) -> bool:
    """Whether the status has what pods reported before their first step.

    An operator that has just started knows no more than that, and must not write less.
    """
    running = status.condition(Condition.RUNNING)
    if running is None or running.reason != Reason.PODS_RUNNING:
        return False
    return running.message != NO_PROGRESS_KNOWN


def _set_progress_known(status: StatusBuilder, reading: ProgressReading) -> None:
    report = reading.report
    if report.phase in TRAINING_PHASES and _trains_since_incident(status):
        status.set_condition(Condition.RUNNING, True, Reason.TRAINING, "")
        status.set(recovery=recovered(status.recovery, status.now, resumed_from=report.resumed_from))
        _set_recovered(status)
        status.set(phase=Phase.EVALUATING if _evaluates_long(status, reading) else Phase.TRAINING)
        return
    status.set_condition(Condition.RUNNING, True, Reason.PODS_RUNNING, f"all pods run; phase {report.phase}")
    _set_starting_or_recovering(status)


def _evaluates_long(status: StatusBuilder, reading: ProgressReading) -> bool:
    """Whether pods report an evaluation that is long enough to be a phase, or already is."""
    if reading.report.phase != "evaluating":
        return False
    return status.phase == Phase.EVALUATING or reading.unchanged >= SHORTEST_EVALUATION


def _set_recovering(status: StatusBuilder) -> None:
    """Report the incident that the run has not recovered from yet."""
    open_ = unrecovered(status.recovery)
    if open_ is not None and open_.kind in REASONS:
        status.set_condition(Condition.RECOVERING, True, REASONS[open_.kind], open_.cause)


def _set_waiting_since(status: StatusBuilder, snapshot: RunSnapshot, diagnosis: Diagnosis | None) -> None:
    """Record since when pods wait for capacity; the wait ends when the whole gang is bound."""
    if snapshot.all_bound_at is not None:
        status.set_recovery(waiting_since=None)
    elif status.recovery.waiting_since is None and diagnosis and diagnosis.reason in WITHOUT_CAPACITY:
        status.set_recovery(waiting_since=timestamp(status.now))


def _set_pods_not_running(status: StatusBuilder, snapshot: RunSnapshot, obstacle: Diagnosis) -> None:
    was_running = status.is_true(Condition.RUNNING)
    status.set_condition(Condition.RUNNING, False, obstacle.reason, obstacle.message)
    if was_running and not status.is_true(Condition.RECOVERING):
        cause = _interruption_cause(snapshot) or obstacle.message
        status.set_condition(Condition.RECOVERING, True, Reason.PODS_LOST, cause)
    _set_starting_or_recovering(status)


def _trains_since_incident(status: StatusBuilder) -> bool:
    """Whether an iteration completed since the last incident: surviving pods may not have noticed it yet."""
    open_, progress = unrecovered(status.recovery), status.progress
    if open_ is None:
        return True
    later = (seconds(progress.time) or 0.0) >= (seconds(open_.time) or 0.0)
    return later and progress.iteration != open_.iteration


def _set_no_progress_known(status: StatusBuilder) -> None:
    """All pods run and none has answered yet: they are new, the operator is new, or they are unreachable."""
    never_reported = status.progress.iteration is None
    if never_reported:
        status.set(recovery=recovered(status.recovery, status.now, resumed_from=None))
        _set_recovered(status)
    recovering = status.is_true(Condition.RECOVERING)
    if status.phase in TRAINS and not recovering and not never_reported:
        return
    if not reported_unreachable(status):
        status.set_condition(Condition.RUNNING, True, Reason.PODS_RUNNING, NO_PROGRESS_KNOWN)
    _set_starting_or_recovering(status)


def _set_starting_or_recovering(status: StatusBuilder) -> None:
    status.set(phase=Phase.RECOVERING if status.is_true(Condition.RECOVERING) else Phase.STARTING)


def _set_recovered(status: StatusBuilder) -> None:
    if status.is_true(Condition.RECOVERING):
        status.set_condition(Condition.RECOVERING, False, Reason.RECOVERED, status.recovery.last_cause or "")


def _starting(snapshot: RunSnapshot) -> Diagnosis:
    running = sum(pod.get("status", {}).get("phase") == "Running" for pod in snapshot.active_pods)
    message = f"{running} of {snapshot.size} pods run"
    slow = next((pod for pod in snapshot.active_pods if _is_slow_to_start(pod, snapshot.now)), None)
    if slow is not None:
        # The kubelet reports a volume that cannot be mounted in an Event alone.
        name = slow["metadata"]["name"]
        message += f"; kubectl describe pod {name} has what it waits for, such as its image or a volume"
    return Diagnosis(Reason.PODS_STARTING, message)


def _is_slow_to_start(pod: Object, now: float) -> bool:
    bound, phase = bound_since(pod), (pod.get("status") or {}).get("phase")
    return bound is not None and phase == "Pending" and now - bound > SLOW_START_SECONDS


def _interruption_cause(snapshot: RunSnapshot) -> str | None:
    return _first_cause([*snapshot.ends.values(), *(pod_end(pod, snapshot.name) for pod in snapshot.pods)])


def _first_cause(ends: list[PodEnd | None]) -> str | None:
    """The cause of the first pod that did not only lose a peer."""
    known = sorted((end for end in ends if end is not None), key=lambda end: not end.own_fault)
    return known[0].cause if known else None


def _failure_cause(snapshot: RunSnapshot) -> str | None:
    """Why the job failed: the end of the pod whose exit code is not retried."""
    ends = [end for pod in snapshot.pods if (end := pod_end(pod, snapshot.name)) is not None]
    ends += snapshot.ends.values()
    final = [end for end in ends if end.exit_code is not None and 0 < end.exit_code < 128]
    return _first_cause([*final, *ends])


def _set_succeeded(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    reading = snapshot.reading
    # Without a report since the operator started, the status has the checkpoint from before the interruption.
    resumed_from = status.checkpoint.iteration if reading is None else reading.report.resumed_from
    message = next((found for pod in snapshot.pods if (found := termination_message(pod))), None)
    plan = status.current.plan
    if message is not None and message.checkpoint_iteration is not None:
        newest = {"iteration": message.checkpoint_iteration}
        status.set(checkpoint=status.checkpoint.model_copy(update=newest))
        set_best_checkpoint(status, message)
    # What pods last reported may be of a job that was to train longer.
    total = (plan.train_iters if plan else None) or status.progress.train_iters
    # A trainer completes after its last iteration only; its last report may be of the one before. Where an
    # edit has made the run shorter, it may have been past that one.
    if total is None:
        iteration = (message and message.iteration) or status.progress.iteration
    else:
        iteration = max(total, status.checkpoint.iteration or 0)
    update = {"iteration": iteration, "train_iters": total, "display": display(iteration, total), "eta": None}
    status.set(progress=status.progress.model_copy(update=update))
    status.set(recovery=recovered(status.recovery, status.now, resumed_from=resumed_from))
    text = "" if iteration is None else f"all {total or iteration} iterations are complete"
    _set_recovered(status)
    if exports(status) and not status.is_true(Condition.SUCCEEDED):
        set_trained(status, text)
    else:
        set_succeeded(status, text)

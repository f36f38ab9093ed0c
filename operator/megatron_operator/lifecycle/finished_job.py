"""Releases what a run that has ended still holds, and deletes its Jobs after `ttlSecondsAfterFinished`."""

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.actions import (
    DONE,
    LATER,
    SOON,
    Action,
    DeleteJob,
    DeleteRuntime,
    DeleteStageJobs,
    Result,
    wait,
)
from megatron_operator.lifecycle.forced_deletion import force_delete
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.progress_status import end_reports
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import backend_of


def clean_up(status: StatusBuilder, snapshot: RunSnapshot) -> Result:
    """Release what a run that has ended still holds: pods of a failed run, then its expired job."""
    end_reports(status)
    if status.phase == Phase.SUCCEEDED:
        return expire_job(status, snapshot)
    job = snapshot.job
    if job is not None and snapshot.job_phase not in (JobPhase.FAILED, JobPhase.SUCCEEDED):
        return wait(SOON, "the failed run's job ends", [] if is_deleting(job) else deletion(job))
    if snapshot.deleting_pods:
        return wait(LATER, "the failed run's pods end", [force_delete(status, snapshot.abandoned_pods)])
    return expire_job(status, snapshot)


def expire_job(status: StatusBuilder, snapshot: RunSnapshot) -> Result:
    """Delete the Jobs and pods of a run that has ended, or wait until it is time; nothing without the field.

    The recipe, its status and its claims stay, and so do Jobs of stages that have failed.
    """
    job, ttl, ended = snapshot.job, status.spec.get("ttlSecondsAfterFinished"), _ended_at(status)
    if ended is None or not isinstance(ttl, int) or (job is not None and is_deleting(job)):
        return DONE
    remaining = ended + ttl - status.now
    if remaining > 0:
        return wait(remaining, "the job of the finished run is kept")
    # The others first: an operator that ends in between sees by the training job that it is not done.
    others = DeleteStageJobs(status.key.namespace, status.key.name, status.uid)
    return Result((others,) if job is None else (others, *deletion(job)))


def deletion(job: Object) -> list[Action]:
    """What deletes a job that no other of the run follows."""
    before = [DeleteRuntime(job)] if backend_of(job).TEMPLATE_PLURAL is not None else []
    return [*before, DeleteJob(job)]


def _ended_at(status: StatusBuilder) -> float | None:
    """When the run succeeded or failed, in Unix seconds."""
    for kind in (Condition.SUCCEEDED, Condition.FAILED):
        if status.is_true(kind) and (found := status.condition(kind)) is not None:
            return seconds(found.last_transition_time)
    return None

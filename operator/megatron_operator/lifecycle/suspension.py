"""Ends the pods of a suspended run."""

from dataclasses import replace
from typing import Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.actions import SOON, DeleteJob, Result, wait
from megatron_operator.lifecycle.forced_deletion import force_delete
from megatron_operator.lifecycle.job_status import set_suspended
from megatron_operator.lifecycle.object_metadata import is_deleting
from megatron_operator.lifecycle.progress_status import update_iteration
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

NO_POD_LEFT: Final = "no pod is left"
"""Message of a run of which everything has ended."""


def is_settled(status: StatusBuilder) -> bool:
    """Whether nothing was left of the suspended run when its status was written, or it never had anything."""
    if status.generation == 1:
        return True
    running = status.condition(Condition.RUNNING)
    ended = running is not None and (running.reason, running.message) == (Reason.SUSPENDED, NO_POD_LEFT)
    return not status.edited and (ended or status.phase == Phase.REFUSED)


def end_suspended_pods(status: StatusBuilder, snapshot: RunSnapshot) -> Result | None:
    """Delete the job, then wait for its pods to end; None once no pod is left."""
    job, left = snapshot.job, snapshot.leftover_pods
    if job is not None:
        update_iteration(status, snapshot)
        set_suspended(status, "pods are ending")
        if is_deleting(job):
            return wait(SOON, Reason.SUSPENDED)
        return replace(wait(SOON, Reason.SUSPENDED, [DeleteJob(job)]), decision="suspend")
    if left:
        set_suspended(status, f"{len(left)} pods are ending")
        return wait(SOON, Reason.SUSPENDED, [force_delete(status, snapshot.abandoned_pods)])
    return None

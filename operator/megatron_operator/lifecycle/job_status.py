"""Status changes that follow the training job: planned, refused, blocked, adopted, replaced, starting."""

from typing import Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import JobStatus
from megatron_operator.lifecycle.actions import Requeue
from megatron_operator.lifecycle.checkpoint_compatibility import continued_contract
from megatron_operator.lifecycle.desired import DesiredState, contract_of, has_begun
from megatron_operator.lifecycle.object_metadata import Object, content_hash
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.progress_status import end_reports
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE, MAX_NOTES, cut
from megatron_operator.manifests import pytorchjob
from megatron_operator.manifests.job_backends import backend_of

UNCHECKED: Final = "unchecked"
"""`status.prepared` of a run whose recipe leaves no data to check: those that an edit names are checked."""
LONGEST_ERROR: Final = 300
"""Characters of an unexpected error in a condition."""


def set_plan(status: StatusBuilder, desired: DesiredState) -> None:
    """Report the plan: how the run is mapped to its accelerators.

    A job that stays until an edit can be applied has the plan before.
    """
    plan = desired.plan
    notes = [cut(note, LONGEST_CAUSE) for note in plan.notes[:MAX_NOTES]]
    resolved = desired.run.resolved
    price = resolved.profile.price_per_gpu_hour
    update = {"notes": notes, "price_per_gpu_hour": price, "engine": resolved.engine}
    status.set(plan=plan.model_copy(update=update))
    if plan.world_size == desired.requested and status.recovery.elastic is not None:
        status.set_recovery(elastic=None)


def set_planned(status: StatusBuilder, desired: DesiredState) -> None:
    """Report that the recipe can run as it is, with its layout."""
    plan = desired.plan
    sizes = (
        ("TP", plan.tensor_model_parallel_size),
        ("PP", plan.pipeline_model_parallel_size),
        ("CP", plan.context_parallel_size),
        ("DP", plan.data_parallel_size),
    )
    layout = " x ".join(f"{name} {size}" for name, size in sizes)
    fewer = plan.world_size != desired.requested
    count = f"{plan.world_size} of {desired.requested}" if fewer else str(plan.world_size)
    pods = f"{plan.nodes} pod{'s' if plan.nodes > 1 else ''} of {plan.per_node}"
    status.set_condition(Condition.PLANNED, True, Reason.PLANNED, f"{layout} = {count}, in {pods}")


def set_refused(status: StatusBuilder, reason: Reason, error: InvalidRecipeError, *, running: bool) -> None:
    """Report why the recipe cannot run as it is.

    A job of the previous generation keeps `running`, and a run that has succeeded stays so.
    """
    message = str(error)
    known = status.condition(Condition.PLANNED)
    status.set_condition(Condition.PLANNED, False, reason, message)
    new = status.condition(Condition.PLANNED)
    assert new is not None, "the condition has just been set"
    # Compared as they were cut: a long message would else be new every time.
    if known is None or (known.status, known.reason, known.message) != (new.status, new.reason, new.message):
        status.add_event(reason, message, warning=True)
    if not running and not status.is_true(Condition.SUCCEEDED):
        status.remove_conditions(Condition.FAILED)
        status.set(phase=Phase.REFUSED)


def set_internal_error(status: StatusBuilder, error: Exception, *, running: bool) -> None:
    """Report an unexpected error of the operator; `running` is as for `set_blocked`.

    The generation is not observed, so the same step is retried.
    """
    status.internal_error = error
    message = describe_error(error)
    known = status.condition(Condition.INTERNAL_ERROR)
    if known is None or known.message != message:
        status.add_event(Reason.INTERNAL_ERROR, message, warning=True)
    status.set_condition(Condition.INTERNAL_ERROR, True, Reason.INTERNAL_ERROR, message)
    if not running:
        set_blocked(status, Reason.INTERNAL_ERROR, message, running=False)


def describe_error(error: Exception) -> str:
    """Type and message of an exception in one line of at most `LONGEST_ERROR` characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 3]}..."


def set_blocked(status: StatusBuilder, reason: Reason, message: str, *, running: bool) -> None:
    """Report why the next step has to wait.

    With `running`, the job of the previous generation keeps its own condition Running, and only Prepared is
    set.
    """
    if running:
        status.set_condition(Condition.PREPARED, False, reason, message)
        return
    status.remove_conditions(Condition.FAILED)
    status.set(phase=Phase.PENDING)
    status.set_condition(Condition.RUNNING, False, reason, message)


def queued_message(
    status: StatusBuilder, condition: Condition, queue: str | None, held_back: str | None
) -> str:
    """What a suspended job waits for; `queue` is the one that its label names.

    `held_back` is why Kueue does not admit it. Where that was not read, what `condition` has of it stays.
    """
    if not queue:
        return "the job is suspended"
    message = f"waits for admission by queue {queue}"
    if held_back:
        return f"{message}: {cut(held_back, LONGEST_CAUSE)}"
    known = status.condition(condition)
    if held_back is None and known is not None and known.reason == Reason.QUEUED:
        return known.message if known.message.startswith(f"{message}: ") else message
    return message


def set_obstacle(status: StatusBuilder, obstacle: Obstacle, *, running: bool) -> Requeue:
    """Report an object that cannot be used, as `set_blocked` does; returns when to check again."""
    set_blocked(status, obstacle.reason, obstacle.message, running=running)
    return Requeue(obstacle.after, obstacle.reason)


def set_prepared(status: StatusBuilder, desired: DesiredState) -> None:
    """Report that the data is ready: its preparation is complete, or none was needed.

    Data that were prepared elsewhere stay as checked as they are: only a check makes them more.
    """
    digest = desired.manifests.prepare_hash
    if desired.manifests.check_job is not None:
        status.set(preparation=None)
        if status.current.prepared in (None, UNCHECKED):
            status.set_condition(Condition.PREPARED, True, Reason.NOTHING_TO_PREPARE)
        elif not status.is_true(Condition.PREPARED):
            status.set_condition(Condition.PREPARED, True, Reason.CHECKED)
        return
    data = desired.run.resolved.data
    unchecked = UNCHECKED if data.check is False or data.mock_data else None
    status.set(prepared=digest or unchecked, preparation=None)
    reason = Reason.PREPARED if digest else Reason.NOTHING_TO_PREPARE
    known = status.condition(Condition.PREPARED)
    kept = known if known is not None and (known.status, known.reason) == ("True", reason) else None
    status.set_condition(Condition.PREPARED, True, reason, kept.message if kept else "")


def set_trained(status: StatusBuilder, text: str) -> None:
    """Report that the run has reached its last iteration, and that its export is left to do."""
    status.set(phase=Phase.EXPORTING)
    status.remove_conditions(Condition.FAILED, Condition.SUCCEEDED)
    status.set_condition(Condition.RUNNING, False, Reason.SUCCEEDED, text)
    if status.condition(Condition.EXPORTED) is None:
        status.set_condition(Condition.EXPORTED, False, Reason.EXPORTING, "the export job is due")


def set_succeeded(status: StatusBuilder, text: str) -> None:
    """Report that all that the recipe asks for is done."""
    known = status.is_true(Condition.SUCCEEDED)
    status.set(phase=Phase.SUCCEEDED)
    status.set_condition(Condition.RUNNING, False, Reason.SUCCEEDED, text)
    status.set_condition(Condition.SUCCEEDED, True, Reason.SUCCEEDED, text)
    if not known:
        status.add_event(Reason.SUCCEEDED, text or "the run is complete")


def set_starting(status: StatusBuilder, reason: Reason, message: str) -> None:
    """Report that pods are about to start, for the first time or again."""
    status.set(phase=Phase.RECOVERING if status.is_true(Condition.RECOVERING) else Phase.STARTING)
    status.set_condition(Condition.RUNNING, False, reason, message)


def set_suspended(status: StatusBuilder, pods: str) -> None:
    """Report that the run is suspended, and the state of its `pods`."""
    status.observe_generation()
    reset_job_status(status)
    status.set_recovery(elastic=None)
    status.remove_conditions(Condition.FAILED)
    status.set(phase=Phase.SUSPENDED, preparation=None, conversion=None)
    status.set_condition(Condition.RUNNING, False, Reason.SUSPENDED, pods)


def set_job_replaced(status: StatusBuilder) -> None:
    """Report that the job is being re-created because the recipe changed."""
    reset_job_status(status)
    status.remove_conditions(Condition.FAILED, Condition.SUCCEEDED)
    status.set(phase=Phase.STARTING, memory=None)
    message = "the recipe changed: the job is being re-created"
    status.set_condition(Condition.RUNNING, False, Reason.JOB_REPLACED, message)


def adopt_job(status: StatusBuilder, job: Object) -> None:
    """Record a job that the status does not name yet, even if the write after its creation was lost.

    The budget of restarts starts over, except when the job replaces one that the operator resized.
    """
    uid = job["metadata"]["uid"]
    if status.current.job is not None and status.current.job.uid == uid:
        return
    if status.recovery.outgoing_job is None:
        reset_job_status(status)
    else:
        _clear_job_fields(status)
    made = content_hash(job) or ""
    if status.current.memory is not None and status.current.memory.job != made:
        # The plan may need more or less than what was measured.
        status.set(memory=None)
    status.set(
        job=JobStatus(
            name=job["metadata"]["name"],
            uid=uid,
            kind=None if backend_of(job) is pytorchjob else backend_of(job).KIND,
            hash=made,
        ),
        checkpoint=status.checkpoint.model_copy(update={"contract": _contract(status, job)}),
        omitted=None,
    )
    status.remove_conditions(Condition.FAILED, Condition.SUCCEEDED)


def _contract(status: StatusBuilder, job: Object) -> dict[str, str] | None:
    before, after = status.checkpoint.contract, contract_of(job)
    if after is None or before is None or not has_begun(status):
        return after or before
    return continued_contract(before, after)


def reset_job_status(status: StatusBuilder) -> None:
    """Clear the fields of a job that is deleted or was replaced, with its budget of restarts."""
    _clear_job_fields(status)
    status.set_recovery(restarts_since_checkpoint=0, first_cause=None, checkpoint_iteration=None)
    status.remove_conditions(Condition.RECOVERING)


def _clear_job_fields(status: StatusBuilder) -> None:
    """The run continues in another job, so its count of restarts stays."""
    end_reports(status)
    status.set(exported=None, exported_best=None, conversion=None)
    status.remove_conditions(Condition.EXPORTED)
    status.set(job=None, progress=status.progress.model_copy(update={"generation": None, "eta": None}))
    status.set_recovery(
        pods_as_of=None,
        gang=None,
        ended_pods={},
        restart_before=None,
        outgoing_job=None,
        waiting_since=None,
    )

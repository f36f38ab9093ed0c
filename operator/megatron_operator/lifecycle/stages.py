"""The batch Jobs that a run waits for: import of weights, preparation or check of data, export at its end.

Each has a phase, a condition and reasons of its own; what becomes of a Job is the same for all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from megatron_contract.exit_codes import ExitCode
from megatron_contract.termination import TerminationMessage

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import ANNOTATION_GENERATION
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.accepted_spec import training_hash
from megatron_operator.lifecycle.actions import Requeue
from megatron_operator.lifecycle.desired import DesiredState, has_begun
from megatron_operator.lifecycle.job_status import queued_message, set_obstacle
from megatron_operator.lifecycle.object_metadata import Object, content_hash, is_deleting
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.pod_termination import container_message, pod_end
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE, cut
from megatron_operator.manifests import Manifests, check, convert, kueue, prepare
from megatron_operator.manifests.data_digest import data_digest, former_digests
from megatron_operator.manifests.metadata import (
    ROLE_CHECK,
    ROLE_EXPORT,
    ROLE_EXPORT_BEST,
    ROLE_IMPORT,
    ROLE_PREPARE,
)


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the Jobs, and how it shows in the status."""

    role: str
    """Value of the role label of its pods."""
    noun: str
    container: str
    final: tuple[int, ...]
    """Exit codes that fail the Job at once."""
    phase: Phase
    condition: Condition
    running: Reason
    complete: Reason
    failed: Reason
    hint: str = ""
    """What is added to the cause of a failure: the field of what the container calls otherwise."""


PREPARATION: Final = Stage(
    ROLE_PREPARE,
    "preparation",
    prepare.CONTAINER,
    tuple(prepare.FINAL),
    Phase.PREPARING,
    Condition.PREPARED,
    Reason.PREPARING,
    Reason.PREPARED,
    Reason.PREPARE_FAILED,
)
CHECK: Final = Stage(
    ROLE_CHECK,
    "check",
    check.CONTAINER,
    tuple(prepare.FINAL),
    Phase.CHECKING,
    Condition.PREPARED,
    Reason.CHECKING,
    Reason.CHECKED,
    Reason.CHECK_FAILED,
)
"""Of data that were prepared elsewhere."""
IMPORT: Final = Stage(
    ROLE_IMPORT,
    "import",
    convert.CONTAINER,
    (convert.REFUSED,),
    Phase.IMPORTING,
    Condition.IMPORTED,
    Reason.IMPORTING,
    Reason.IMPORTED,
    Reason.IMPORT_FAILED,
)
EXPORT: Final = Stage(
    ROLE_EXPORT,
    "export",
    convert.CONTAINER,
    (convert.REFUSED,),
    Phase.EXPORTING,
    Condition.EXPORTED,
    Reason.EXPORTING,
    Reason.EXPORTED,
    Reason.EXPORT_FAILED,
    "; --to is spec.export.huggingFace.path, where export.when has both with /best or /end",
)
EXPORT_BEST: Final = replace(EXPORT, role=ROLE_EXPORT_BEST, noun="export of the best checkpoint")
STAGES: Final = (IMPORT, PREPARATION, CHECK, EXPORT, EXPORT_BEST)
EXPORTS: Final = (EXPORT, EXPORT_BEST)
CONVERSIONS: Final = {IMPORT: "imported", EXPORT: "exported", EXPORT_BEST: "exported_best"}
"""Stage -> field of the status that holds what is complete."""
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""


class StageState(StrEnum):
    """State of the Job of a stage."""

    DELETING = "deleting"
    OUTDATED = "outdated"
    """It is to be deleted and created again."""
    QUEUED = "queued"
    """It is suspended: Kueue has not admitted it, or has taken its quota away."""
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


def created_for(body: Object, generation: int) -> Object:
    """The Job to create for this generation of the recipe, which `stage_state` compares later."""
    metadata = body["metadata"]
    annotations = metadata["annotations"] | {ANNOTATION_GENERATION: str(generation)}
    return body | {"metadata": metadata | {"annotations": annotations}}


def stage_state(stage: Stage, job: Object, body: Object, generation: int, *, edited: bool) -> StageState:
    """State of the recipe's own Job; `body` is the one that is needed, for this generation of the recipe.

    Without an edit a conversion goes on though a new version of the operator renders its Job differently:
    it may have run for hours. `edited` retries one that failed.
    """
    if is_deleting(job):
        return StageState.DELETING
    done = _ends(job)
    keeps = (
        stage in CONVERSIONS and not edited and "Failed" not in done and _same_recipe(job, body, generation)
    )
    same = keeps or content_hash(job) == content_hash(body)
    elsewhere = _is_suspended(job) and kueue.waits_elsewhere(job, body)
    if not same or elsewhere or ("Failed" in done and edited):
        return StageState.OUTDATED
    if "Complete" in done:
        return StageState.COMPLETE
    if "Failed" in done:
        return StageState.FAILED
    return StageState.QUEUED if _is_suspended(job) else StageState.RUNNING


def is_retried(status: StatusBuilder, stage: Stage, job: Object) -> bool:
    """Whether an edit that has had to wait since is to try this Job again, should it have failed.

    The Job is of an earlier generation, and the status follows it no longer. One that an edit has left
    running has failed for the run as it is now.
    """
    made = job["metadata"]["annotations"].get(ANNOTATION_GENERATION)
    if made in (None, str(status.generation)):
        return False
    known = status.condition(stage.condition)
    return known is None or known.status == "True" or known.reason == stage.failed


def is_over(job: Object) -> bool:
    """Whether a Job is complete or has failed."""
    return bool(_ends(job) & {"Complete", "Failed"})


def _ends(job: Object) -> set[str]:
    return {c["type"] for c in (job.get("status") or {}).get("conditions") or [] if c["status"] == "True"}


def lacks_pods(job: Object) -> bool:
    """Whether a Job has fewer pods than it runs at a time, as its controller reports it."""
    spec, status = job["spec"], job.get("status") or {}
    pods = sum(status.get(count) or 0 for count in ("active", "succeeded"))
    return bool(pods < (spec.get("parallelism") or 1))


def _is_suspended(job: Object) -> bool:
    return bool((job.get("spec") or {}).get("suspend"))


def _same_recipe(job: Object, body: Object, generation: int) -> bool:
    """Whether the Job was created for this generation; where a version too old to note it created the Job,
    whether it has the same arguments.
    """
    made = job["metadata"]["annotations"].get(ANNOTATION_GENERATION)
    return arguments_of(job) == arguments_of(body) if made is None else bool(made == str(generation))


def arguments_of(job: Mapping[str, Any]) -> list[Any]:
    """Arguments of the container that the Job was created with."""
    return list(job["spec"]["template"]["spec"]["containers"][0].get("args") or ())


def set_stage_failed(status: StatusBuilder, stage: Stage, job: Object, pods: Iterable[Object]) -> None:
    """End the run because its Job failed; the termination message of the pod to blame has the cause.

    That is one whose exit code fails the Job at once: the Job then ends the others, which is no cause.
    """
    name = job["metadata"]["name"]
    newest_last = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    ends = [end for pod in newest_last if (end := pod_end(pod, name, stage.container))]
    ends.sort(key=lambda end: (end.exit_code in stage.final, end.exit_code is not None))
    failed = next(c for c in job["status"]["conditions"] if (c["type"], c["status"]) == ("Failed", "True"))
    cause = f"{stage.noun} failed: {ends[-1].cause if ends else failed.get('message', 'no reason given')}"
    cause += stage.hint
    status.set(preparation=None, conversion=None)
    status.set_condition(stage.condition, False, stage.failed, cause)
    status.fail(stage.failed, cause)


def set_stage_queued(status: StatusBuilder, stage: Stage, job: Object, held_back: str | None) -> None:
    """Report that the Job is suspended, by its queue or by somebody; `held_back` is as for the snapshot.

    A run that has trained waits in the phase of the export.
    """
    status.set(phase=stage.phase if stage in (EXPORT, EXPORT_BEST) else Phase.QUEUED)
    message = queued_message(status, stage.condition, kueue.queue_of(job), held_back)
    status.set_condition(stage.condition, False, Reason.QUEUED, message)


def set_stage_obstacle(status: StatusBuilder, stage: Stage, obstacle: Obstacle) -> Requeue:
    """Report why the Job cannot be created yet; returns when to check again.

    A run that has trained waits in the phase of the export: it does not become one that has yet to start.
    """
    if stage not in (EXPORT, EXPORT_BEST):
        return set_obstacle(status, obstacle, running=False)
    status.set(phase=stage.phase)
    status.set_condition(stage.condition, False, obstacle.reason, obstacle.message)
    return Requeue(obstacle.after, obstacle.reason)


def set_stage_begun(status: StatusBuilder, stage: Stage, message: str) -> None:
    """Report that the Job is created, runs, or is about to be replaced.

    Before the training job there is nothing that Running could describe but an obstacle that has gone.
    """
    if stage not in EXPORTS:
        status.remove_conditions(Condition.RUNNING)
    status.set(phase=stage.phase)
    status.set_condition(stage.condition, False, stage.running, message)


def manifest_of(stage: Stage, manifests: Manifests) -> Object | None:
    """The Job of a conversion; None for a run without it."""
    if stage is IMPORT:
        return manifests.import_job
    return manifests.export_job if stage is EXPORT else manifests.export_best_job


def is_needed(stage: Stage, manifests: Manifests) -> bool:
    """Whether the run has a Job of this stage, done or not."""
    if stage in CONVERSIONS:
        return manifest_of(stage, manifests) is not None
    return (manifests.prepare_job if stage is PREPARATION else manifests.check_job) is not None


def must_prepare(status: StatusBuilder, manifests: Manifests) -> bool:
    """Whether the data of the run are prepared or checked before its job is created.

    Not once more for the same, whichever release has done it. Nor is a run checked that has begun and has
    nothing of its data in the status: an earlier release started it, and it continues as it was.
    """
    job, known = manifests.data_job, status.current.prepared
    if job is None or known in (data_digest(job), *former_digests(job)):
        return False
    return manifests.prepare_job is not None or known is not None or not has_begun(status)


def was_prepared_by(status: StatusBuilder, job: Object, body: Object) -> bool:
    """Whether this Job, of an earlier release, has prepared or checked what the run needs: that of `body`.

    The recipe has not been edited since, or the data are the same.
    """
    if status.current.prepared not in former_digests(job):
        return False
    made = job["metadata"]["annotations"].get(ANNOTATION_GENERATION)
    return made == str(status.generation) or data_digest(job) in (data_digest(body), *former_digests(body))


def set_data_ready(status: StatusBuilder, stage: Stage, manifests: Manifests, pods: Iterable[Object]) -> None:
    """Report that the data of the run are prepared or have passed the check, with what the pod reports."""
    found = (TerminationMessage.parse(container_message(pod, stage.container)) for pod in _first(pods))
    text = next((end.message for end in found if end is not None and end.exit_code == ExitCode.OK), "")
    status.set(prepared=manifests.prepare_hash, preparation=None)
    status.set_condition(stage.condition, True, stage.complete, cut(text, LONGEST_CAUSE))


def _first(pods: Iterable[Object]) -> Iterable[Object]:
    """Those of index 0, of pods that share the work: the others have no result."""
    return (pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(_INDEX, "0") == "0")


def reached_end(status: StatusBuilder) -> bool:
    """Whether the job in the status has reached the last iteration, though the run may still export."""
    return status.is_true(Condition.SUCCEEDED) or status.condition(Condition.EXPORTED) is not None


def has_trained(status: StatusBuilder, desired: DesiredState) -> bool:
    """Whether what the spec has the run train is complete, though the run may still export.

    Platform and operator may have come to render its job differently: it has trained all the same.
    """
    job, accepted = status.current.job, status.current.accepted
    if job is None or not reached_end(status):
        return False
    same = accepted is not None and accepted.training_hash == training_hash(status)
    return same or job.hash == desired.job_hash

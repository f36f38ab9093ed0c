"""What to do about the objects that exist for a recipe: claims, data preparation, training job."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.api.labels import KIND, LABEL_RECIPE
from megatron_operator.api.reasons import Reason
from megatron_operator.api.status import ConversionProgressStatus, PreparationStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.actions import LATER, SOON
from megatron_operator.lifecycle.object_metadata import Object, content_hash, is_deleting
from megatron_operator.lifecycle.ownership import Obstacle, name_obstacle
from megatron_operator.lifecycle.progress_reading import ProgressReading, ProgressTarget
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import Manifests, compute_domain, gang_scheduling, jobset, trainjob
from megatron_operator.manifests.job_backends import backend_of, backend_of_kind

CLAIM_KIND = "PersistentVolumeClaim"
DELETE_OR_RENAME = "delete it, or rename the recipe"


def recorded_kind(status: StatusBuilder) -> str:
    """Kind of the training job that the status names; that of the default backend where it names none."""
    recorded = status.current.job
    return backend_of_kind(None if recorded is None else recorded.kind).KIND


def job_obstacle(status: StatusBuilder, job: Object) -> Obstacle | None:
    """Why a training job of the recipe's name cannot be followed; None where it is the recipe's own."""
    kind = backend_of(job).KIND
    if kind == jobset.KIND and _made_for(status, job, trainjob.KIND):
        return jobset_obstacle(status, job)
    return name_obstacle(status, kind, job, DELETE_OR_RENAME)


MISSING_BEFORE_PODS: Final = {
    compute_domain.KIND: Reason.COMPUTE_DOMAIN_MISSING,
    gang_scheduling.KIND: Reason.POD_GROUP_MISSING,
}
"""Kind of an object that pods need -> the reason of a run that waits for it."""


def obstacle_before_pods(status: StatusBuilder, existing: Object, wanted: Object) -> Obstacle | None:
    """Why an object of the run's name that its pods need cannot be used; None where it is as wanted.

    With a reason of MISSING_BEFORE_PODS the object is to be deleted, unless that goes on: a PodGroup is
    immutable, and that of an earlier job may be for a gang of another size.
    """
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    found = name_obstacle(status, kind, existing, DELETE_OR_RENAME)
    if found is not None:
        return found
    if is_deleting(existing):
        return Obstacle(MISSING_BEFORE_PODS[kind], f"{kind} {name} is being deleted", LATER)
    if kind == gang_scheduling.KIND and content_hash(existing) != content_hash(wanted):
        return Obstacle(MISSING_BEFORE_PODS[kind], f"{kind} {name} of an earlier job is replaced", SOON)
    return None


def runtime_obstacle(status: StatusBuilder, existing: Object) -> Obstacle | None:
    """Why a TrainingRuntime of the run's name cannot be used; None where it is the recipe's own."""
    found = name_obstacle(status, trainjob.RUNTIME_KIND, existing, DELETE_OR_RENAME)
    if found is None and is_deleting(existing):
        message = f"{trainjob.RUNTIME_KIND} {existing['metadata']['name']} of an earlier job is ending"
        return Obstacle(Reason.PREVIOUS_JOB_ENDING, message, SOON)
    return found


def runtime_body(existing: Object, wanted: Object) -> Object | None:
    """What replaces the recipe's own TrainingRuntime; None where it is as it should be."""
    if content_hash(existing) == content_hash(wanted):
        return None
    kept = ("uid", "resourceVersion", "finalizers")
    metadata = {name: existing["metadata"][name] for name in kept if name in existing["metadata"]}
    return wanted | {"metadata": wanted["metadata"] | metadata}


def jobset_obstacle(status: StatusBuilder, left: Object) -> Obstacle:
    """Why no job can be created beside a JobSet of its name, of an earlier job or of somebody else."""
    name = left["metadata"]["name"]
    if _made_for(status, left, KIND, trainjob.KIND):
        message = f"{jobset.KIND} {name} of an earlier job is ending"
        return Obstacle(Reason.PREVIOUS_JOB_ENDING, message, SOON)
    message = f"{jobset.KIND} {name} exists and is not this recipe's; {DELETE_OR_RENAME}"
    return Obstacle(Reason.NAME_TAKEN, message, LATER)


def _made_for(status: StatusBuilder, existing: Object, *owners: str) -> bool:
    """Whether an object has the recipe's label and an owner of one of these kinds."""
    labels = existing["metadata"].get("labels") or {}
    kinds = {owner.get("kind") for owner in existing["metadata"].get("ownerReferences") or []}
    return labels.get(LABEL_RECIPE) == status.key.name and not kinds.isdisjoint(owners)


def batch_job_obstacle(status: StatusBuilder, job: Object) -> Obstacle | None:
    """Why a Job of a stage's name cannot be used; None where it is the recipe's own."""
    return name_obstacle(status, "Job", job, DELETE_OR_RENAME)


def policy_obstacle(status: StatusBuilder, policy: Object) -> Obstacle | None:
    """Why a NetworkPolicy of the run's name cannot be used; None where it is the recipe's own."""
    return name_obstacle(status, "NetworkPolicy", policy, DELETE_OR_RENAME)


def policy_changes(existing: Object, wanted: Object) -> Object | None:
    """What to merge into the recipe's own NetworkPolicy; None where it is as it should be."""
    if content_hash(existing) == content_hash(wanted):
        return None
    return {"metadata": {"annotations": wanted["metadata"]["annotations"]}, "spec": wanted["spec"]}


def stage_targets(pods: Iterable[Object]) -> tuple[ProgressTarget, ...]:
    """Pods that serve the progress of a stage's Job; each knows that of all."""
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    return tuple(
        ProgressTarget(pod["metadata"]["name"], pod["status"]["podIP"], number)
        for number, pod in enumerate(running)
        if pod["status"].get("podIP")
    )


def set_stage_progress(status: StatusBuilder, reading: ProgressReading | None) -> None:
    """Report how far the preparation or conversion is, as its pods last answered."""
    if reading is None:
        return
    if (conversion := reading.report.conversion) is not None:
        status.set(
            conversion=ConversionProgressStatus(
                step=conversion.step,
                tensors_done=min(conversion.tensors_done, conversion.tensors_total),
                tensors_total=conversion.tensors_total,
                bytes_done=min(conversion.bytes_done, conversion.bytes_total),
                bytes_total=conversion.bytes_total,
            )
        )
    progress = reading.report.preparation
    if progress is None:
        return
    left = progress.seconds_left
    # Rounded, so that the time does not change with every answer.
    end = None if left is None else timestamp(60.0 * round((reading.answered + left) / 60.0))
    status.set(
        preparation=PreparationStatus(
            documents=progress.documents,
            bytes_done=min(progress.bytes_done, progress.bytes_total),
            bytes_total=progress.bytes_total,
            bytes_per_second=progress.bytes_per_second and float(f"{progress.bytes_per_second:.3g}"),
            eta=end,
        )
    )


def checks_data(pods: Iterable[Object], reading: ProgressReading | None) -> bool:
    """Whether these pods of the preparation check what they have prepared, as they last answered."""
    progress = None if reading is None else reading.report.preparation
    return progress is not None and progress.step == "check" and bool(stage_targets(pods))


def missing_claim(name: str, namespace: str) -> Obstacle:
    """A claim that the recipe names does not exist."""
    message = f"{CLAIM_KIND} {name} does not exist in namespace {namespace}; create it, or correct claimName"
    return Obstacle(Reason.VOLUME_CLAIM_MISSING, message, LATER)


def missing_priority_class(name: str) -> Obstacle:
    """The WorkloadPriorityClass of the run does not exist. Kueue creates no Workload for a job with it."""
    message = f"there is no WorkloadPriorityClass {name}; create it, or correct workloadPriorityClassName"
    return Obstacle(Reason.WORKLOAD_PRIORITY_CLASS_MISSING, message, LATER)


def ending_claim(name: str) -> Obstacle:
    """A claim is being deleted: a pod that mounts it would not start, and its data will be gone."""
    message = f"{CLAIM_KIND} {name} is being deleted; the run waits until it is gone"
    return Obstacle(Reason.VOLUME_CLAIM_TERMINATING, message, LATER)


def access_obstacle(manifests: Manifests, existing: Object) -> Obstacle | None:
    """Why the pods that prepare the data cannot all mount the recipe's claim; None where they can."""
    job, name = manifests.prepare_job, existing["metadata"]["name"]
    workers = 1 if job is None else job["spec"].get("parallelism", 1)
    if job is None or workers == 1:
        return None
    volumes = job["spec"]["template"]["spec"]["volumes"]
    mounted = {
        each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each
    }
    modes = existing.get("spec", {}).get("accessModes") or []
    if name not in mounted or "ReadWriteMany" in modes:
        return None
    message = (
        f"{CLAIM_KIND} {name} is {' and '.join(modes)}, for the pods of one node, and data.prepare.workers "
        f"is {workers}; name one with ReadWriteMany, or set workers: 1, which uses all processors of its node"
    )
    return Obstacle(Reason.VOLUME_CLAIM_OF_ONE_NODE, message, LATER)


def claim_obstacle(status: StatusBuilder, manifests: Manifests, existing: Object) -> Obstacle | None:
    """Why the claim that the operator found in place of its own cannot be used; None where it can."""
    name = existing["metadata"]["name"]
    checkpoints = name == manifests.checkpoint_claim
    field = "checkpoint" if checkpoints else "data"
    fix = f"set spec.{field}.volume.claimName: {name} to use it, delete it, or rename the recipe"
    found = name_obstacle(status, CLAIM_KIND, existing, fix, retainable=checkpoints)
    if found is None and is_deleting(existing):
        return ending_claim(name)
    return found


def claim_changes(existing: Object, manifests: Manifests, claim: Object, uid: str) -> Object | None:
    """The merge patch that makes a claim of the recipe with this UID what it should be; None where it is.

    It keeps its size and storage class where the recipe sets none: the platform's are those of new claims,
    and the class is immutable. So is the access mode, and one for several nodes serves a single node too.
    Owners that somebody else added stay.
    """
    wanted = manifests.existing_claims[existing["metadata"]["name"]]
    if content_hash(existing) in (content_hash(claim), content_hash(wanted)):
        return None
    spec, metadata = wanted["spec"], wanted["metadata"]
    modes = existing.get("spec", {}).get("accessModes") or []
    if "ReadWriteMany" in modes:
        spec = spec | {"accessModes": modes}
    own = metadata.get("ownerReferences") or []
    owners = existing["metadata"].get("ownerReferences") or []
    others = [owner for owner in owners if owner.get("uid") != uid]
    changed = {"annotations": metadata["annotations"], "ownerReferences": [*others, *own] or None}
    return {"metadata": changed, "spec": spec}

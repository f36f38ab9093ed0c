"""Executes the actions of a reconcile, and counts what was decided."""

import re
from collections.abc import Iterable
from typing import Final

from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, PODS, TRAINING_RUNTIMES, training_jobs
from megatron_operator.controller.metrics import DECISIONS
from megatron_operator.lifecycle.actions import (
    Action,
    AvoidNodes,
    DeleteJob,
    DeletePods,
    DeleteRuntime,
    DeleteStageJobs,
    DeleteUnboundPods,
    ForceDeletePods,
    PinImage,
    ReplacePods,
    SetPriorityClass,
)
from megatron_operator.lifecycle.object_metadata import Object, condition, is_deleting, owned_by
from megatron_operator.manifests import image_pinning, node_avoidance, recovery_priority
from megatron_operator.manifests.job_backends import backend_of_pod

GANG_GRACE: Final = 10
"""Grace period in seconds for pods of a gang that makes no progress: there is nothing to save."""


async def execute(api: ApiClient, actions: Iterable[Action], decision: str | None = None) -> None:
    """Execute actions in their order. Raises ApiError when the API server rejects one.

    `decision` is what they carry out, which has been written to the status; it is counted once, and without
    one each action is.
    """
    if decision is not None:
        DECISIONS.labels(decision).inc()
    for action in actions:
        if await _execute(api, action) and decision is None:
            DECISIONS.labels(kind_of(action)).inc()


def kind_of(decided: object) -> str:
    """The kind of an action or decision: `DeletePods` is `delete_pods`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(decided).__name__).lower()


async def _execute(api: ApiClient, action: Action) -> bool:
    """Whether anything was changed."""
    match action:
        case AvoidNodes(job, nodes):
            return await _patch_job(api, job, node_avoidance.merge_patch(job, nodes))
        case PinImage(job, image):
            return await _patch_job(api, job, image_pinning.merge_patch(job, image))
        case SetPriorityClass(job, name):
            return await _patch_job(api, job, recovery_priority.merge_patch(job, name))
        case DeleteJob(job):
            await api.delete(training_jobs(job), job)
        case DeleteRuntime(job):
            return await _delete_runtime(api, job)
        case DeleteStageJobs(namespace, recipe, uid):
            return await _delete_stage_jobs(api, namespace, recipe, uid)
        case DeletePods(pods, saves):
            # Their Jobs first: one whose pod ended with exit code 0 is complete, and without the pod
            # nothing shows that it must be replaced.
            await _replace(api, pods)
            for pod in pods:
                await api.delete(PODS, pod, None if saves else GANG_GRACE)
        case ReplacePods(pods):
            return await _replace(api, pods)
        case DeleteUnboundPods(pods):
            for pod in pods:
                await api.delete(PODS, pod, same_version=True)
        case ForceDeletePods(pods):
            for pod in pods:
                await _replace(api, [pod])
                await api.delete(PODS, pod, 0)
            return bool(pods)
    return True


async def _delete_runtime(api: ApiClient, job: Object) -> bool:
    metadata = job["metadata"]
    runtime = await api.get(TRAINING_RUNTIMES, metadata["namespace"], metadata["name"])
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or []]
    if runtime is None or is_deleting(runtime) or not any(owned_by(runtime, uid) for uid in owners):
        return False
    await api.delete(TRAINING_RUNTIMES, runtime)
    return True


async def _delete_stage_jobs(api: ApiClient, namespace: str, recipe: str, uid: str) -> bool:
    jobs = await api.find(BATCH_JOBS, namespace, labels=f"{LABEL_RECIPE}={recipe}")
    complete = [
        job
        for job in jobs
        if owned_by(job, uid) and condition(job, "Complete").get("status") == "True" and not is_deleting(job)
    ]
    for job in complete:
        await api.delete(BATCH_JOBS, job)
    return bool(complete)


async def _replace(api: ApiClient, pods: Iterable[Object]) -> bool:
    """Delete what the pods are replaced with; whether there was anything. It is gone once they are."""
    deleted = False
    for pod in pods:
        job = backend_of_pod(pod).replaced_with(pod)
        if job is None:
            continue
        metadata = job["metadata"]
        existing = await api.get(BATCH_JOBS, metadata["namespace"], metadata["name"])
        # An operator that ends after each write gets no further if it deletes this again and again.
        if existing is not None and not is_deleting(existing):
            await api.delete(BATCH_JOBS, job, foreground=True)
            deleted = True
    return deleted


async def _patch_job(api: ApiClient, job: Object, changes: Object) -> bool:
    """Patch this version of a job; False where there is a newer one, which the next reconcile judges."""
    try:
        await api.merge(training_jobs(job), job, changes)
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise
        return False
    return True

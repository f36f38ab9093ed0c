"""Executes the actions of a reconcile."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.controller.api_client import BATCH_JOBS, PODS, ApiClient, ApiError, training_jobs
from megatron_operator.lifecycle.actions import (
    Action,
    AvoidNodes,
    DeleteJob,
    DeletePods,
    DeleteUnboundPods,
    ForceDeletePods,
    PinImage,
    ReplacePods,
    SetPriorityClass,
)
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.manifests import image_pinning, node_avoidance, recovery_priority
from megatron_operator.manifests.job_backends import backend_of_pod

GANG_GRACE: Final = 10
"""Grace period in seconds for pods of a gang that makes no progress: there is nothing to save."""


async def execute(api: ApiClient, actions: Iterable[Action]) -> None:
    """Execute actions in their order. Raises ApiError when the API server rejects one."""
    for action in actions:
        match action:
            case AvoidNodes(job, nodes):
                await _patch_job(api, job, node_avoidance.merge_patch(job, nodes))
            case PinImage(job, image):
                await _patch_job(api, job, image_pinning.merge_patch(job, image))
            case SetPriorityClass(job, name):
                await _patch_job(api, job, recovery_priority.merge_patch(job, name))
            case DeleteJob(job):
                await api.delete(training_jobs(job), job)
            case DeletePods(pods, saves):
                # Their Jobs first: one whose pod ended with exit code 0 is complete, and without the pod
                # nothing shows that it must be replaced.
                await _replace(api, pods)
                for pod in pods:
                    await api.delete(PODS, pod, None if saves else GANG_GRACE)
            case ReplacePods(pods):
                await _replace(api, pods)
            case DeleteUnboundPods(pods):
                for pod in pods:
                    await api.delete(PODS, pod, same_version=True)
            case ForceDeletePods(pods):
                for pod in pods:
                    await _replace(api, [pod])
                    await api.delete(PODS, pod, 0)


async def _replace(api: ApiClient, pods: Iterable[Object]) -> None:
    """Delete what the pods are replaced with, if anything; it is gone once they are."""
    for pod in pods:
        job = backend_of_pod(pod).replaced_with(pod)
        if job is None:
            continue
        metadata = job["metadata"]
        existing = await api.get(BATCH_JOBS, metadata["namespace"], metadata["name"])
        # An operator that ends after each write gets no further if it deletes this again and again.
        if existing is not None and not is_deleting(existing):
            await api.delete(BATCH_JOBS, job, foreground=True)


async def _patch_job(api: ApiClient, job: Object, changes: Object) -> None:
    """Patch this version of a job; the next reconcile judges a newer one."""
    try:
        await api.merge(training_jobs(job), job, changes)
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise

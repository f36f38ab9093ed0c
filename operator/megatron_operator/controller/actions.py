"""What is done once the status has said it: everything here may be done twice, or by the next operator."""

from dataclasses import dataclass, field
from typing import Final

from megatron_operator.controller.api_client import JOBS, PODS, ApiError, Cluster, Object
from megatron_operator.manifests.node_avoidance import merge_patch

GANG_GRACE: Final = 10
"""Seconds for pods of a gang that makes no progress: there is nothing to save."""


@dataclass(slots=True)
class Step:
    """What is left to do once the status is written, and when to look again."""

    again: float | None = None
    delete_job: Object | None = None
    keep_off: tuple[Object, frozenset[str]] | None = None
    """A job, and the nodes that pods made from now on keep off."""
    delete_pods: list[Object] = field(default_factory=list)
    delete_unbound: list[Object] = field(default_factory=list)
    """Pods without a node, made from a template that is outdated; one that gets a node meanwhile stays."""
    force_delete: list[Object] = field(default_factory=list)
    """Pods whose kubelet will never say that they have ended."""


async def perform(cluster: Cluster, step: Step) -> None:
    """The template first: pods that replace the deleted ones are made from it."""
    if step.keep_off is not None:
        await _keep_off(cluster, *step.keep_off)
    if step.delete_job is not None:
        await cluster.delete(JOBS, step.delete_job)
    for pod in step.delete_pods:
        await cluster.delete(PODS, pod, GANG_GRACE)
    for pod in step.delete_unbound:
        await cluster.delete(PODS, pod, same_version=True)
    await force_delete(cluster, step.force_delete)


async def force_delete(cluster: Cluster, pods: list[Object]) -> None:
    """Take pods out of the API server whose kubelet will never say that they have ended."""
    for pod in pods:
        await cluster.delete(PODS, pod, 0)


async def _keep_off(cluster: Cluster, job: Object, nodes: frozenset[str]) -> None:
    try:
        await cluster.merge(JOBS, job, merge_patch(job, nodes))
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise

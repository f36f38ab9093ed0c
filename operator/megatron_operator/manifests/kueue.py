"""Labels and annotations by which Kueue ranks a job in its queue, and places its gang."""

from typing import Final

from megatron_operator.api.labels import ANNOTATION_QUEUED_AS
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.affinity import required_levels
from megatron_operator.manifests.job_backend import LABEL_PRIORITY_CLASS, LABEL_QUEUE
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest

PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Kueue admits pods with this or the next only to a flavor whose Topology has the key as a level."""
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
GROUP_NAME: Final = "kueue.x-k8s.io/podset-group-name"
"""Pod sets with the same value share one domain. Kueue accepts two of them, one with a single pod."""
_GANG: Final = "gang"


def annotations(resolved: ResolvedRecipe, plan: Plan) -> dict[str, str]:
    """What the pods of a queued run have; empty without a topology, or a queue that is aware of it.

    Kueue takes one level of a pod set: the nearest that is required, else the nearest of the topology. Master
    and Workers are two pod sets, each of which would have a domain of its own.
    """
    if resolved.scheduling.queue is None or not resolved.topology_aware_queues:
        return {}
    if plan.nodes > 1 and (required := required_levels(resolved, plan)):
        return {REQUIRED_TOPOLOGY: required[0], GROUP_NAME: _GANG}
    topology = resolved.scheduling.topology
    return {PREFERRED_TOPOLOGY: topology[0]} if topology else {}


def chooses_domain(template: Manifest) -> bool:
    """Whether Kueue, once it admits a job with this pod template, chooses the domain that its pods share."""
    return REQUIRED_TOPOLOGY in ((template.get("metadata") or {}).get("annotations") or {})


def set_priority_class(job: Manifest, resolved: ResolvedRecipe) -> None:
    """Label the job of a queued run with its WorkloadPriorityClass.

    To be called after the job's hash is known: another class need not replace a job that exists.
    """
    name = resolved.scheduling.workload_priority_class_name
    if name is not None and resolved.scheduling.queue is not None:
        job["metadata"]["labels"] = job["metadata"]["labels"] | {LABEL_PRIORITY_CLASS: name}


def priority_class(job: Manifest) -> str | None:
    """The WorkloadPriorityClass of a job, by its label."""
    name = (job["metadata"].get("labels") or {}).get(LABEL_PRIORITY_CLASS)
    return name and str(name)


def has_priority_class(job: Manifest, wanted: Manifest) -> bool:
    """Whether a job that exists has the class of the `wanted` one.

    One that names none takes any: an admission policy, or Kueue, may have given the job a class, and Kueue
    refuses to remove it.
    """
    return priority_class(wanted) in (None, priority_class(job))


def priority_patch(job: Manifest, wanted: Manifest) -> Manifest | None:
    """JSON merge patch that gives a job the class of `wanted`; None where only another job can have it.

    Kueue refuses to add a class to a job that runs.
    """
    if priority_class(job) is None or not backend_of(job).PATCHES_TEMPLATES:
        return None
    return {"metadata": {"labels": {LABEL_PRIORITY_CLASS: priority_class(wanted)}}}


def annotate_queue(job: Manifest, resolved: ResolvedRecipe) -> None:
    """Record on a Job for which queue and class it is created, or that it is for none."""
    parts = (resolved.scheduling.queue, resolved.scheduling.workload_priority_class_name)
    annotations = job["metadata"].get("annotations") or {}
    job["metadata"]["annotations"] = annotations | {ANNOTATION_QUEUED_AS: "/".join(filter(None, parts))}


def waits_elsewhere(job: Manifest, wanted: Manifest) -> bool:
    """Whether a Job was created for another queue or class than `wanted`.

    Its labels do not count, which an admission policy may have set; except of a Job that an earlier release
    has created, which has no record.
    """
    asked = _queued_as(job)
    if asked is not None:
        return asked != _queued_as(wanted)
    return queue_of(job) != queue_of(wanted) or not has_priority_class(job, wanted)


def _queued_as(job: Manifest) -> str | None:
    value = (job["metadata"].get("annotations") or {}).get(ANNOTATION_QUEUED_AS)
    return None if value is None else str(value)


def queue_of(job: Manifest) -> str | None:
    """The queue that a job waits in, by its label."""
    value = (job["metadata"].get("labels") or {}).get(LABEL_QUEUE)
    return value and str(value)

"""Labels and annotations by which Kueue ranks a job in its queue, and places its gang."""

from typing import Final

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.affinity import required_levels
from megatron_operator.manifests.job_backend import LABEL_PRIORITY_CLASS
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest

PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Kueue admits pods with this or the next only to a flavor whose Topology has the key as a level."""
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
GROUP_NAME: Final = "kueue.x-k8s.io/podset-group-name"
"""Pod sets with the same value share one domain. Kueue accepts two of them, one with a single pod."""
_GANG: Final = "gang"
_DEFAULT_CLASS: Final = "default"
"""The class that Kueue gives jobs without one, with its feature gate WorkloadPriorityClassDefaulting."""


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
    """Whether a job that exists has the class of the `wanted` one."""
    present, name = priority_class(job), priority_class(wanted)
    return present == name or (name is None and present == _DEFAULT_CLASS)


def priority_patch(job: Manifest, wanted: Manifest) -> Manifest | None:
    """JSON merge patch that gives a job the class of `wanted`; None where it must be created again.

    Kueue refuses to remove a class, and to add one to a job that runs.
    """
    name = priority_class(wanted)
    if name is None or priority_class(job) is None or not backend_of(job).PATCHES_TEMPLATES:
        return None
    return {"metadata": {"labels": {LABEL_PRIORITY_CLASS: name}}}

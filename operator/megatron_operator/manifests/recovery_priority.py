"""A PriorityClass for the pods with which a run recovers.

A scheduler takes pods of the same priority in the order of their creation. So a pod that replaces another one
would wait for all runs that wait for nodes, and its whole gang with it.
"""

from collections.abc import Iterator
from copy import deepcopy

from megatron_operator.api.labels import ANNOTATION_RECOVERY_PRIORITY
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import Manifest
from megatron_operator.manifests.pytorchjob import template_patch


def annotate(job: Manifest, resolved: ResolvedRecipe) -> None:
    """Record the class on a job whose recipe has no other priority: neither its own nor that of a queue.

    To be called after the job's hash is known: another class does not replace a job that exists.
    """
    scheduling, name = resolved.scheduling, resolved.recovery_priority_class_name
    if name is None or scheduling.priority_class_name is not None or scheduling.queue is not None:
        return
    job["metadata"]["annotations"][ANNOTATION_RECOVERY_PRIORITY] = name


def missing_class(job: Manifest) -> str | None:
    """The class that a job's templates do not have yet; None where there is nothing to add."""
    return _recorded(job) if any(_without_class(job)) else None


def merge_patch(job: Manifest, name: str) -> Manifest:
    """JSON merge patch that gives new pods of a PyTorchJob this class."""
    change: Manifest = {"spec": {"priorityClassName": name}}
    return template_patch(job, [change] * len(backend_of(job).templates(job)))


def recovering(job: Manifest) -> Manifest:
    """The manifest of a job with which a run goes on: all of its pods have the class."""
    name = _recorded(job)
    if name is None:
        return job
    changed = deepcopy(job)
    for template in _without_class(changed):
        template["spec"]["priorityClassName"] = name
    return changed


def _recorded(job: Manifest) -> str | None:
    name = (job["metadata"].get("annotations") or {}).get(ANNOTATION_RECOVERY_PRIORITY)
    return None if name is None else str(name)


def _without_class(job: Manifest) -> Iterator[Manifest]:
    return (each for each in backend_of(job).templates(job) if "priorityClassName" not in each["spec"])

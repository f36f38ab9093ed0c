"""The kinds of training job, and the one that an object belongs to."""

from collections.abc import Iterable
from typing import Any, Final

from megatron_operator.manifests import jobset, pytorchjob, trainjob
from megatron_operator.manifests.job_backend import JobBackend

BACKENDS: Final[dict[str, JobBackend]] = {"pytorchjob": pytorchjob, "jobset": jobset, "trainjob": trainjob}
"""By the names that `platform.jobBackend` has."""


def backend_of(job: dict[str, Any]) -> JobBackend:
    """The backend of a job, by its API group."""
    group = str(job.get("apiVersion", "")).partition("/")[0]
    return next((each for each in BACKENDS.values() if group == each.GROUP), pytorchjob)


def backend_of_kind(kind: str | None) -> JobBackend:
    """The backend of jobs of this kind; PyTorchJob for None and for unknown ones."""
    return next((each for each in BACKENDS.values() if kind == each.KIND), pytorchjob)


def backend_of_pod(pod: dict[str, Any]) -> JobBackend:
    """The backend of a trainer pod, by its labels: those of a JobSet also where a TrainJob created that."""
    return next((each for each in BACKENDS.values() if each.job_name(pod) is not None), pytorchjob)


def node_rank(pod: dict[str, Any]) -> int:
    """Node rank of a pod in its gang: the Master is 0."""
    return backend_of_pod(pod).node_rank(pod)


def stable_name(pod: dict[str, Any]) -> str:
    """Name of a pod's place in the gang, which its replacement has too: `<job>-worker-3`."""
    return backend_of_pod(pod).stable_name(pod)


def newest_by_place(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest pod of each place in the gang: a Job keeps those that it replaced itself.

    A Job has one pod at a time that has not ended, which counts among pods of the same second.
    """

    def age(pod: dict[str, Any]) -> tuple[str, bool]:
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        return pod["metadata"].get("creationTimestamp") or "", not ended

    newest: dict[str, dict[str, Any]] = {}
    for pod in pods:
        place = stable_name(pod)
        if place not in newest or age(pod) > age(newest[place]):
            newest[place] = pod
    return list(newest.values())

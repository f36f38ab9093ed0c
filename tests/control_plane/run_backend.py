"""What the tests know of a kind of training job. MEGATRON_CONTROL_PLANE_BACKEND chooses that of the runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from megatron_operator.manifests import trainjob
from megatron_operator.manifests.job_backend import JobBackend
from megatron_operator.manifests.job_backends import BACKENDS, stable_name

from testkit.api_server import Api, Object

VARIABLE: Final = "MEGATRON_CONTROL_PLANE_BACKEND"
PYTORCHJOB: Final = "pytorchjob"


@dataclass(frozen=True)
class RunBackend:
    """A backend of the operator under test."""

    name: str
    """As in `platform.jobBackend`."""
    operator_options: tuple[str, ...]
    """Options with which the operator handles its jobs, as the chart sets them."""
    pod_controller: str
    """The component of the local cluster that creates the pods of a job."""

    @property
    def manifests(self) -> JobBackend:
        """The operator's module for it."""
        return BACKENDS[self.name]

    @property
    def kind(self) -> str:
        """Kind of the job."""
        return self.manifests.KIND

    @property
    def platform(self) -> Object:
        """What chooses it in the platform file."""
        return {} if self.name == PYTORCHJOB else {"jobBackend": self.name}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the objects that a run has because of its job, besides pods."""
        return {
            "jobset": ("JobSet", "Job"),
            "trainjob": ("TrainJob", trainjob.RUNTIME_KIND, "JobSet", "Job"),
        }.get(self.name, (self.kind,))

    @property
    def changes_templates(self) -> bool:
        """Whether a pod gets other nodes while the job stays; else the job is created again."""
        return self.manifests.PATCHES_TEMPLATES

    def suspend_path(self) -> tuple[str, ...]:
        """Where a job's spec has `suspend`."""
        return ("runPolicy", "suspend") if self.name == PYTORCHJOB else ("suspend",)

    def pod_at(self, api: Api, namespace: str, place: str) -> str | None:
        """The name of the pod at a place, such as `run-worker-0`; None while there is none.

        Only the pods of a PyTorchJob are named after their places.
        """
        if self.name == PYTORCHJOB:
            return place
        pods = [each for each in api.list("Pod", namespace) if stable_name(each) == place]
        current = [each for each in pods if "deletionTimestamp" not in each["metadata"]] or pods
        newest = max(current, key=lambda each: str(each["metadata"]["creationTimestamp"]), default=None)
        return None if newest is None else str(newest["metadata"]["name"])

    def suspended(self, metadata: Object, template: Object) -> Object:
        """An object with the pod template that creates no pod: a job, or what a TrainJob is made from."""
        if self.name == PYTORCHJOB:
            spec: Object = {
                "runPolicy": {"suspend": True},
                "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}},
            }
            return self._object(self.kind, metadata, spec)
        jobs = [{"name": "master", "template": {"spec": {"template": template}}}]
        if self.name == "jobset":
            return self._object(self.kind, metadata, {"suspend": True, "replicatedJobs": jobs})
        return self._object(trainjob.RUNTIME_KIND, metadata, {"template": {"spec": {"replicatedJobs": jobs}}})

    def _object(self, kind: str, metadata: Object, spec: Object) -> Object:
        version = f"{self.manifests.GROUP}/{self.manifests.VERSION}"
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


RUN_BACKENDS: Final[Mapping[str, RunBackend]] = {
    each.name: each
    for each in (
        RunBackend(PYTORCHJOB, (), "training-operator"),
        RunBackend("jobset", ("--jobsets",), "kube-controller-manager"),
        RunBackend("trainjob", ("--trainjobs",), "kube-controller-manager"),
    )
}


def chosen() -> RunBackend:
    """The backend that the environment chooses. Raises ValueError for an unknown one."""
    name = os.environ.get(VARIABLE, PYTORCHJOB)
    if name not in RUN_BACKENDS:
        raise ValueError(f"{VARIABLE} is {name!r}; use one of {', '.join(RUN_BACKENDS)}")
    return RUN_BACKENDS[name]


CHOSEN: Final = chosen()

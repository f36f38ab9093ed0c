"""The kinds of objects that the operator reads and writes, as the API server's paths have them."""

from dataclasses import dataclass
from typing import Final

from megatron_operator.api.labels import GROUP, PLURAL, STORED_VERSION
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests import compute_domain, gang_scheduling, jobset, pytorchjob, trainjob
from megatron_operator.manifests.job_backends import BACKENDS, backend_of


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, as in the path of its URL."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str | None = None, subresource: str | None = None) -> str:
        """Path of a namespace's collection, an object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", namespace, self.plural, name, subresource]
        return "/".join(part for part in parts if part)

    def cluster_path(self) -> str:
        """Path of the collection over all namespaces."""
        return f"/apis/{self.group}/{self.version}/{self.plural}" if self.group else f"/api/v1/{self.plural}"


RECIPES: Final = Resource(GROUP, STORED_VERSION, PLURAL)
TRAINING_JOBS: Final = {
    each.KIND: Resource(each.GROUP, each.VERSION, each.PLURAL) for each in BACKENDS.values()
}
"""Training jobs of each backend, by kind."""
JOBS: Final = TRAINING_JOBS[pytorchjob.KIND]
"""Those of the default backend."""
JOBSETS: Final = TRAINING_JOBS[jobset.KIND]
TRAINING_RUNTIMES: Final = Resource(trainjob.GROUP, trainjob.VERSION, trainjob.TEMPLATE_PLURAL)
"""What Trainer creates the JobSet of a TrainJob from."""
COMPUTE_DOMAINS: Final = Resource(compute_domain.GROUP, compute_domain.VERSION, compute_domain.PLURAL)
POD_GROUPS: Final = Resource(gang_scheduling.GROUP, gang_scheduling.VERSION, gang_scheduling.PLURAL)
BATCH_JOBS: Final = Resource("batch", "v1", "jobs")
PODS: Final = Resource("", "v1", "pods")
CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
EVENTS: Final = Resource("", "v1", "events")
SECRETS: Final = Resource("", "v1", "secrets")
"""Created, never read."""
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies")
NODES: Final = Resource("", "v1", "nodes")
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses")
WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
"""What Kueue keeps of each job in a queue."""
WORKLOAD_PRIORITY_CLASSES: Final = Resource(WORKLOADS.group, WORKLOADS.version, "workloadpriorityclasses")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")


def training_jobs(job: Object) -> Resource:
    """The resource that a training job belongs to."""
    return TRAINING_JOBS[backend_of(job).KIND]


def templates_of(job: Object) -> Resource | None:
    """The resource of the object of the job's name that has its pod templates; None where the job has."""
    backend = backend_of(job)
    plural = backend.TEMPLATE_PLURAL
    return None if plural is None else Resource(backend.GROUP, backend.VERSION, plural)

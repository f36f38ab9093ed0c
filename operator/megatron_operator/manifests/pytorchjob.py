"""PyTorchJob of the Kubeflow training-operator v1, which replaces each of its pods by itself."""

from collections.abc import Sequence
from typing import Any

from megatron_operator.api.status import Plan
from megatron_operator.manifests.job_backend import (
    LABEL_QUEUE,
    JobState,
    state_by_conditions,
)
from megatron_operator.manifests.metadata import Manifest, Owner, copied

GROUP = "kubeflow.org"
VERSION = "v1"
PLURAL = "pytorchjobs"
KIND = "PyTorchJob"
CONTROLLER = "the Kubeflow training-operator"
PATCHES_TEMPLATES = True
REPLACES_PODS = True
TEMPLATE_PLURAL = None
EVENT_SELECTORS = (f"involvedObject.kind={KIND},type=Warning",)
LABEL_JOB_NAME = "training.kubeflow.org/job-name"
LABEL_REPLICA_TYPE = "training.kubeflow.org/replica-type"
LABEL_REPLICA_INDEX = "training.kubeflow.org/replica-index"


def job(owner: Owner, plan: Plan, template: Manifest, queue: str | None) -> Manifest:
    """A job of one Master and n-1 Workers whose pods are replaced when they exit with 128 or more.

    With a Kueue queue the job is created suspended; from then on Kueue suspends and resumes it.
    """
    metadata = owner.metadata(owner.object_name)
    pods = copied(template)
    run_policy: Manifest = {"cleanPodPolicy": "Running"}
    if queue is not None:
        metadata["labels"] = metadata["labels"] | {LABEL_QUEUE: queue}
        run_policy["suspend"] = True
    replicas: Manifest = {"Master": {"replicas": 1, "restartPolicy": "ExitCode", "template": pods}}
    if plan.nodes > 1:
        replicas["Worker"] = {
            "replicas": plan.nodes - 1,
            "restartPolicy": "ExitCode",
            "template": copied(pods),
        }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "nprocPerNode": str(plan.per_node),
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": replicas,
        },
    }


def objects(job: Manifest) -> list[Manifest]:
    """The PyTorchJob alone."""
    return [job]


def with_templates(job: Manifest, source: Manifest) -> Manifest:
    """The job, which has its templates."""
    del source
    return job


def templates(job: Manifest) -> list[Manifest]:
    """The pod templates of a job."""
    return [replica["template"] for replica in job["spec"]["pytorchReplicaSpecs"].values()]


def template_patch(job: Manifest, changes: Sequence[Manifest]) -> Manifest:
    """JSON merge patch of a job that merges `changes`, one for each of `templates`, into its templates."""
    names = job["spec"]["pytorchReplicaSpecs"]
    replicas = {name: {"template": change} for name, change in zip(names, changes, strict=True)}
    return {"spec": {"pytorchReplicaSpecs": replicas}}


def state(job: dict[str, Any]) -> JobState:
    """State of a job as the API server returns it. Succeeded and Failed are final."""
    suspend = job.get("spec", {}).get("runPolicy", {}).get("suspend")
    return state_by_conditions(job, "Succeeded", suspend=suspend)


def size(job: Manifest) -> int:
    """Number of pods in the gang."""
    return sum(int(replica.get("replicas", 1)) for replica in job["spec"]["pytorchReplicaSpecs"].values())


def per_node(job: Manifest) -> int:
    """Accelerators of one pod."""
    return int(job["spec"]["nprocPerNode"])


def pod_name(job_name: str, node_rank: int) -> str:
    """Name of the pod with this node rank: the Master is 0."""
    return f"{job_name}-master-0" if node_rank == 0 else f"{job_name}-worker-{node_rank - 1}"


def node_rank(pod: dict[str, Any]) -> int:
    """Node rank of a pod in its gang: the Master is 0, Worker i is i + 1.

    A pod whose index somebody changed to something else than a number counts as Worker 0.
    """
    labels = pod["metadata"].get("labels") or {}
    if labels.get(LABEL_REPLICA_TYPE) == "master":
        return 0
    index = str(labels.get(LABEL_REPLICA_INDEX, "0"))
    return (int(index) if index.isdecimal() else 0) + 1


def owns(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Whether the job is an owner of the pod."""
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == job["metadata"]["uid"] for owner in owners)


def job_name(pod: dict[str, Any]) -> str | None:
    """Name of the job that a pod belongs to."""
    name = (pod["metadata"].get("labels") or {}).get(LABEL_JOB_NAME)
    return name and str(name)


def stable_name(pod: dict[str, Any]) -> str:
    """The pod's name: its replacement has it too."""
    return str(pod["metadata"]["name"])


def replaced_with(pod: dict[str, Any]) -> Manifest | None:
    """None: a pod that ends or is deleted is replaced."""
    del pod
    return None


def is_event_of(job: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an Event is about this job, not about an earlier one of its name."""
    return bool(event["involvedObject"].get("uid") == job["metadata"]["uid"])

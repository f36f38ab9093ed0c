"""TrainJob of Kubeflow Trainer v2, which creates the JobSet of `jobset` from a TrainingRuntime of the run.

The runtime has no ML policy and no group with the label that Trainer's plugins look for, so Trainer passes
the pod templates on as they are: rendezvous and environment stay the operator's.

A manifest of this kind is the TrainJob with its runtime attached under RUNTIME, as `with_templates` does it
for one that exists. The API server has them as two objects. The pods are those of the backend `jobset`.
"""

from typing import Any, Final

from megatron_operator.api.status import Plan
from megatron_operator.manifests import jobset
from megatron_operator.manifests.job_backend import LABEL_QUEUE, JobState, state_by_conditions
from megatron_operator.manifests.metadata import Manifest, Owner, with_hash

GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = "v1alpha1"
PLURAL: Final = "trainjobs"
KIND: Final = "TrainJob"
CONTROLLER: Final = "Kubeflow Trainer v2 (kubeflow.org/trainer)"
PATCHES_TEMPLATES: Final = False
REPLACES_PODS: Final = False
TEMPLATE_PLURAL: Final = "trainingruntimes"
EVENT_SELECTORS: Final = (f"involvedObject.kind={KIND},type=Warning", *jobset.EVENT_SELECTORS)
"""Warnings about TrainJobs, JobSets and Jobs: each reports what it cannot create."""
LABEL_JOB_NAME: Final = jobset.LABEL_JOB_NAME

RUNTIME_KIND: Final = "TrainingRuntime"
RUNTIME: Final = "trainingRuntime"
"""Key of the attached runtime in a manifest; no field of the API."""


def job(owner: Owner, plan: Plan, template: Manifest, queue: str | None) -> Manifest:
    """A TrainJob with its runtime, which has the JobSet of one Master and n-1 Workers.

    `spec.trainer` repeats the size of the gang: nothing reads it there but `size` and `per_node`.
    Raises InvalidRecipeError if the name is too long for the names of pods.
    """
    made = jobset.job(owner, plan, template, queue)
    name = owner.object_name
    metadata = owner.metadata(name)
    if queue is not None:
        metadata["labels"] = metadata["labels"] | {LABEL_QUEUE: queue}
    spec: Manifest = {key: value for key, value in made["spec"].items() if key != "suspend"}
    # Trainer 2.0 does not know the name of a group, and JobSet sets it to this one.
    groups = [
        {key: value for key, value in group.items() if key != "groupName"} for group in spec["replicatedJobs"]
    ]
    runtime: Manifest = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": RUNTIME_KIND,
        "metadata": owner.metadata(name),
        "spec": {
            "template": {
                "metadata": {"labels": owner.labels()},
                "spec": spec | {"replicatedJobs": groups},
            }
        },
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "suspend": queue is not None,
            "runtimeRef": {"apiGroup": GROUP, "kind": RUNTIME_KIND, "name": name},
            "trainer": {"numNodes": plan.nodes, "numProcPerNode": plan.per_node},
        },
        RUNTIME: runtime,
    }


def objects(job: Manifest) -> list[Manifest]:
    """The runtime, with a hash of all that it has, and the TrainJob, which Trainer refuses without it."""
    return [with_hash(job[RUNTIME]), {key: value for key, value in job.items() if key != RUNTIME}]


def with_templates(job: Manifest, source: Manifest) -> Manifest:
    """The TrainJob with its runtime."""
    return job | {RUNTIME: source}


def templates(job: Manifest) -> list[Manifest]:
    """The pod templates of a TrainJob or of a runtime, that of the Master first."""
    runtime = job if job["kind"] == RUNTIME_KIND else job[RUNTIME]
    groups = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return [each["template"]["spec"]["template"] for each in groups]


def state(job: dict[str, Any]) -> JobState:
    """State of a job as the API server returns it. Succeeded and Failed are final."""
    return state_by_conditions(job, "Complete", suspend=job.get("spec", {}).get("suspend"))


def size(job: Manifest) -> int:
    """Number of pods in the gang."""
    return int(job["spec"]["trainer"]["numNodes"])


def per_node(job: Manifest) -> int:
    """Accelerators of one pod."""
    return int(job["spec"]["trainer"]["numProcPerNode"])


def owns(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Whether the pod has the job's name and is not older.

    Its labels have the UID of the JobSet, which the TrainJob does not know. A TrainJob is only created once
    JobSet and pods of an earlier one of its name are gone.
    """
    mine, theirs = job["metadata"], pod["metadata"]
    return bool(job_name(pod) == mine["name"] and theirs["creationTimestamp"] >= mine["creationTimestamp"])


job_name = jobset.job_name
node_rank = jobset.node_rank
stable_name = jobset.stable_name
replaced_with = jobset.replaced_with


def is_event_of(job: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether the Event is about this TrainJob, its JobSet or a Job of that."""
    about, metadata = event["involvedObject"], job["metadata"]
    if about.get("kind") == KIND:
        return bool(about.get("name") == metadata["name"]) and jobset.is_since(metadata, event)
    return jobset.is_event_of(job, event)

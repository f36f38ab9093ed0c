"""JobSet of kubernetes-sigs: one Job for each pod, which the operator deletes to have its pod replaced.

A Job with several pods delays replacements by minutes: its back-off grows with each failure and is not reset.
JobSet's own failure policy restarts the whole gang. So each Job has one pod, and JobSet, which creates every
Job that is missing, creates a deleted one again.
"""

import re
from typing import Any, Final

from megatron_contract.environment import CONTAINER_NAME

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.status import Plan
from megatron_operator.manifests.job_backend import (
    JOB_WARNINGS,
    LABEL_QUEUE,
    JobState,
    state_by_conditions,
)
from megatron_operator.manifests.metadata import Manifest, Owner, copied

GROUP: Final = "jobset.x-k8s.io"
VERSION: Final = "v1alpha2"
PLURAL: Final = "jobsets"
KIND: Final = "JobSet"
CONTROLLER: Final = "JobSet (jobset.sigs.k8s.io)"
PATCHES_TEMPLATES: Final = False
"""JobSet refuses changes of its pod templates, except of few fields while it is suspended."""
REPLACES_PODS: Final = False
TEMPLATE_PLURAL: Final = None
EVENT_SELECTORS: Final = (
    f"involvedObject.kind={KIND},type=Warning",
    JOB_WARNINGS,
)
"""Warnings about JobSets, which create Jobs, and about Jobs that cannot create their pods."""

LABEL_JOB_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
LABEL_JOB_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
LABEL_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
LABEL_INDEX: Final = "jobset.sigs.k8s.io/job-index"
LABEL_GLOBAL_INDEX: Final = "jobset.sigs.k8s.io/job-global-index"
"""Index of a pod's Job among all of the JobSet, in the order of `replicatedJobs`: the node rank."""
MASTER: Final = "master"
WORKER: Final = "worker"
MASTER_PORT: Final = 23456
"""As the training-operator has it."""
LONGEST_NAME: Final = 63 - len("-worker-9999-0-abcde")
"""The name of a pod has at most 63 characters here, because it begins with its host name."""
NEVER_FAILS: Final = 2**31 - 1
"""As `backoffLimit`: the operator limits restarts by `recovery.maxRestarts`."""
FINAL_EXIT_CODES: Final = range(1, 128)
"""Exit codes after which the run has failed; after others the pod is replaced."""

_ENV_PER_NODE: Final = "PET_NPROC_PER_NODE"


def job(owner: Owner, plan: Plan, template: Manifest, queue: str | None) -> Manifest:
    """A JobSet of one Master and n-1 Workers, complete when the Master is.

    With a Kueue queue it is created suspended; from then on Kueue suspends and resumes it. All defaults of
    JobSet's webhook are set, so that it changes nothing.
    Raises InvalidRecipeError if the name is too long for the names of pods.
    """
    name = owner.object_name
    if len(name) > LONGEST_NAME:
        raise InvalidRecipeError([_too_long(owner)])
    metadata = owner.metadata(name)
    pods = _pod(name, plan, template)
    suspend = queue is not None
    if queue is not None:
        metadata["labels"] = metadata["labels"] | {LABEL_QUEUE: queue}
    jobs = [_replicated(owner, MASTER, 1, pods)]
    if plan.nodes > 1:
        jobs.append(_replicated(owner, WORKER, plan.nodes - 1, pods))
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "suspend": suspend,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [MASTER]},
            "replicatedJobs": jobs,
        },
    }


def _too_long(owner: Owner) -> FieldError:
    """Names the job's name where it is not the recipe's, which may be short enough itself."""
    name, fix = owner.object_name, f"use a name of at most {LONGEST_NAME} characters"
    length = f"has {len(name)} characters"
    if name != owner.name:
        length = f"becomes {name} of {len(name)} characters"
        fix += " of a-z, 0-9 and - that begins with a letter, or a shorter one"
    message = f"{length}, but names of a JobSet's pods have room for {LONGEST_NAME}"
    return FieldError("metadata.name", message, fix)


def _pod(name: str, plan: Plan, template: Manifest) -> Manifest:
    """The pod template with what the training-operator adds to those of a PyTorchJob."""
    pods = copied(template)
    pods["spec"]["restartPolicy"] = "Never"
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_GLOBAL_INDEX}']"}}
    gang: list[Manifest] = [
        {"name": "MASTER_ADDR", "value": f"{name}-{MASTER}-0-0.{name}"},
        {"name": "MASTER_PORT", "value": str(MASTER_PORT)},
        {"name": "PET_NNODES", "value": str(plan.nodes)},
        {"name": "PET_NODE_RANK", "valueFrom": rank},
        {"name": _ENV_PER_NODE, "value": str(plan.per_node)},
    ]
    trainer = _trainer(pods)
    trainer["env"] = [*trainer["env"], *gang]
    return pods


def _replicated(owner: Owner, name: str, replicas: int, pods: Manifest) -> Manifest:
    """A group of Jobs with one pod each.

    With podReplacementPolicy Failed no Job has two pods at once. Without the operator, a Job replaces its pod
    itself after a back-off.
    """
    failure = {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": CONTAINER_NAME,
            "operator": "In",
            "values": list(FINAL_EXIT_CODES),
        },
    }
    return {
        "name": name,
        "groupName": "default",
        "replicas": replicas,
        "template": {
            "metadata": {"labels": owner.labels()},
            "spec": {
                "parallelism": 1,
                "completions": 1,
                "completionMode": "Indexed",
                "backoffLimit": NEVER_FAILS,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": [failure]},
                "template": copied(pods),
            },
        },
    }


def objects(job: Manifest) -> list[Manifest]:
    """The JobSet alone."""
    return [job]


def with_templates(job: Manifest, source: Manifest) -> Manifest:
    """The job, which has its templates."""
    del source
    return job


def templates(job: Manifest) -> list[Manifest]:
    """The pod templates of a job, that of the Master first."""
    return [each["template"]["spec"]["template"] for each in job["spec"]["replicatedJobs"]]


def state(job: dict[str, Any]) -> JobState:
    """State of a job as the API server returns it. Succeeded and Failed are final."""
    return state_by_conditions(job, "Completed", suspend=job.get("spec", {}).get("suspend"))


def size(job: Manifest) -> int:
    """Number of pods in the gang."""
    return sum(int(each.get("replicas", 1)) for each in job["spec"]["replicatedJobs"])


def per_node(job: Manifest) -> int:
    """Accelerators of one pod."""
    variables = _trainer(templates(job)[0])["env"]
    return next(int(each["value"]) for each in variables if each["name"] == _ENV_PER_NODE)


def owns(job: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Whether the job's label is on the pod; its owner is a Job."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(LABEL_JOB_UID) == job["metadata"]["uid"])


def job_name(pod: dict[str, Any]) -> str | None:
    """Name of the job that a pod belongs to."""
    name = (pod["metadata"].get("labels") or {}).get(LABEL_JOB_NAME)
    return name and str(name)


def node_rank(pod: dict[str, Any]) -> int:
    """Node rank of a pod in its gang: the Master is 0, Worker i is i + 1.

    A pod whose index somebody changed to something else than a number counts as Worker 0.
    """
    labels = pod["metadata"].get("labels") or {}
    if labels.get(LABEL_REPLICATED_JOB) == MASTER:
        return 0
    index = str(labels.get(LABEL_INDEX, "0"))
    return (int(index) if index.isdecimal() else 0) + 1


def stable_name(pod: dict[str, Any]) -> str:
    """Name of the pod's Job: `<job>-worker-3`. The pod itself has a random suffix."""
    rank = node_rank(pod)
    return f"{job_name(pod)}-{MASTER}-0" if rank == 0 else f"{job_name(pod)}-{WORKER}-{rank - 1}"


def replaced_with(pod: dict[str, Any]) -> Manifest | None:
    """The pod's Job, as far as needed to delete it; None for a pod without one.

    A Job of another name is somebody else's: whoever creates a pod chooses its labels and owners.
    """
    metadata = pod["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if (owner.get("kind"), owner.get("name")) == ("Job", stable_name(pod)):
            reference = {"namespace": metadata["namespace"], "name": owner["name"], "uid": owner["uid"]}
            return {"metadata": reference}
    return None


def is_event_of(job: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether the Event is about this JobSet or a Job of it, not about an earlier one of its name."""
    metadata, about = job["metadata"], event["involvedObject"]
    name = about.get("name") or ""
    of_job = rf"{re.escape(metadata['name'])}-({MASTER}|{WORKER})-[0-9]+"
    own = name == metadata["name"] if about.get("kind") == KIND else re.fullmatch(of_job, name) is not None
    return own and is_since(metadata, event)


def is_since(metadata: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an Event is not older than the object with this metadata."""
    last = event.get("lastTimestamp") or event.get("eventTime") or ""
    return bool(last >= (metadata.get("creationTimestamp") or ""))


def _trainer(template: Manifest) -> Manifest:
    containers: list[Manifest] = template["spec"]["containers"]
    return next(each for each in containers if each["name"] == CONTAINER_NAME)

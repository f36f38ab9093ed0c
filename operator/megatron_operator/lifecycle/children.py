"""What to do about the objects that exist for a recipe: claims, data preparation, training job."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.actions import LATER
from megatron_operator.lifecycle.object_metadata import Object, content_hash, is_deleting
from megatron_operator.lifecycle.ownership import Obstacle, name_obstacle
from megatron_operator.lifecycle.pod_termination import pod_end
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import Manifests, compute_domain, prepare, pytorchjob

CLAIM_KIND = "PersistentVolumeClaim"
DELETE_OR_RENAME = "delete it, or rename the recipe"


class Preparation(StrEnum):
    """State of a data preparation."""

    DELETING = "deleting"
    OUTDATED = "outdated"
    """It is to be deleted and created again."""
    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


def job_obstacle(status: StatusBuilder, job: Object) -> Obstacle | None:
    """Why a PyTorchJob of the recipe's name cannot be followed; None where it is the recipe's own."""
    return name_obstacle(status, pytorchjob.KIND, job, DELETE_OR_RENAME)


def compute_domain_obstacle(status: StatusBuilder, existing: Object) -> Obstacle | None:
    """Why a ComputeDomain of the run's name cannot be used; None where it is the recipe's own."""
    found = name_obstacle(status, compute_domain.KIND, existing, DELETE_OR_RENAME)
    if found is None and is_deleting(existing):
        message = f"{compute_domain.KIND} {existing['metadata']['name']} is being deleted"
        return Obstacle(Reason.COMPUTE_DOMAIN_MISSING, message, LATER)
    return found


def preparation_obstacle(status: StatusBuilder, job: Object) -> Obstacle | None:
    """Why a Job of the preparation's name cannot be used; None where it is the recipe's own."""
    return name_obstacle(status, "Job", job, DELETE_OR_RENAME)


def policy_obstacle(status: StatusBuilder, policy: Object) -> Obstacle | None:
    """Why a NetworkPolicy of the run's name cannot be used; None where it is the recipe's own."""
    return name_obstacle(status, "NetworkPolicy", policy, DELETE_OR_RENAME)


def preparation_state(job: Mapping[str, Any], digest: str, *, edited: bool) -> Preparation:
    """State of the recipe's own preparation; `digest` is the hash of the one that is needed.

    `edited` retries one that failed.
    """
    if is_deleting(job):
        return Preparation.DELETING
    done = {c["type"] for c in (job.get("status") or {}).get("conditions") or [] if c["status"] == "True"}
    if content_hash(job) != digest or ("Failed" in done and edited):
        return Preparation.OUTDATED
    if "Complete" in done:
        return Preparation.COMPLETE
    return Preparation.FAILED if "Failed" in done else Preparation.RUNNING


def set_preparation_failed(status: StatusBuilder, job: Object, pods: Iterable[Object]) -> None:
    """End the run because its preparation failed; the newest pod's termination message has the cause."""
    name = job["metadata"]["name"]
    ends = [end.cause for pod in pods if (end := pod_end(pod, name, prepare.CONTAINER))]
    failed = next(c for c in job["status"]["conditions"] if (c["type"], c["status"]) == ("Failed", "True"))
    cause = f"preparation failed: {ends[-1] if ends else failed.get('message', 'no reason given')}"
    status.set_condition(Condition.PREPARED, False, Reason.PREPARE_FAILED, cause)
    status.fail(Reason.PREPARE_FAILED, cause)


def missing_claim(name: str, namespace: str) -> Obstacle:
    """A claim that the recipe names does not exist."""
    message = f"{CLAIM_KIND} {name} does not exist in namespace {namespace}; create it, or correct claimName"
    return Obstacle(Reason.VOLUME_CLAIM_MISSING, message, LATER)


def ending_claim(name: str) -> Obstacle:
    """A claim is being deleted: a pod that mounts it would not start, and its data will be gone."""
    message = f"{CLAIM_KIND} {name} is being deleted; the run waits until it is gone"
    return Obstacle(Reason.VOLUME_CLAIM_TERMINATING, message, LATER)


def claim_obstacle(status: StatusBuilder, manifests: Manifests, existing: Object) -> Obstacle | None:
    """Why the claim that the operator found in place of its own cannot be used; None where it can."""
    name = existing["metadata"]["name"]
    checkpoints = name == manifests.checkpoint_claim
    field = "checkpoint" if checkpoints else "data"
    fix = f"set spec.{field}.volume.claimName: {name} to use it, delete it, or rename the recipe"
    found = name_obstacle(status, CLAIM_KIND, existing, fix, retainable=checkpoints)
    if found is None and is_deleting(existing):
        return ending_claim(name)
    return found


def claim_changes(existing: Object, claim: Object, uid: str) -> Object | None:
    """The merge patch that makes a claim of the recipe with this UID what it should be; None where it is.

    A claim's access mode is immutable, and one for several nodes serves a single node too. Owners that
    somebody else added stay.
    """
    if content_hash(existing) == content_hash(claim):
        return None
    spec, metadata = claim["spec"], claim["metadata"]
    modes = existing.get("spec", {}).get("accessModes") or []
    if "ReadWriteMany" in modes:
        spec = spec | {"accessModes": modes}
    wanted = metadata.get("ownerReferences") or []
    owners = existing["metadata"].get("ownerReferences") or []
    others = [owner for owner in owners if owner.get("uid") != uid]
    changed = {"annotations": metadata["annotations"], "ownerReferences": [*others, *wanted] or None}
    return {"metadata": changed, "spec": spec}

"""From what is wanted to what is there: claims, preparation, job. Every step may be done twice."""

from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import ANNOTATION_HASH, LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.status import JobStatus
from megatron_operator.controller.actions import force_delete
from megatron_operator.controller.api_client import BATCH_JOBS, CLAIMS, JOBS, PODS, ApiError, Cluster, Object
from megatron_operator.controller.node_reader import Nodes
from megatron_operator.lifecycle.desired import Wanted, contract_of
from megatron_operator.lifecycle.pod_diagnosis import diagnose
from megatron_operator.lifecycle.pod_termination import pod_end
from megatron_operator.lifecycle.snapshot import given_up
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests import prepare, pytorchjob
from megatron_operator.manifests.metadata import ROLE_PREPARE, ROLE_TRAINER
from megatron_operator.manifests.node_avoidance import avoiding

SOON: Final = 1.0
LATER: Final = 5.0


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next step has to wait; look again after so many seconds."""

    seconds: float


def hash_of(obj: Object) -> str | None:
    annotation = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_HASH)
    return str(annotation) if annotation else None


def owned_by(obj: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or [])


def deleting(obj: Object) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


async def role_pods(cluster: Cluster, draft: Draft, role: str) -> list[Object]:
    """Pods of the recipe's trainers or of its preparation."""
    labels = f"{LABEL_RECIPE}={draft.key.name},{LABEL_ROLE}={role}"
    return await cluster.find(PODS, draft.key.namespace, labels=labels)


async def give_up(cluster: Cluster, nodes: Nodes, pods: list[Object], now: float) -> None:
    """Take away what a dead node keeps of a job that is gone: as long as it is there, no other can come."""
    await force_delete(cluster, given_up(pods, await nodes.of(pods, now), now))


def hold(draft: Draft, reason: str, message: str, *, running: bool) -> None:
    """Tell what stands in the way of the next step."""
    if running:
        # The job made for the recipe as it was goes on; its condition stays its own.
        draft.tell(Condition.PREPARED, False, reason, message)
        return
    draft.set(phase=Phase.PENDING)
    draft.tell(Condition.RUNNING, False, reason, message)


async def provide_claims(cluster: Cluster, draft: Draft, wanted: Wanted, *, running: bool) -> Blocked | None:
    """Claims of the user's must exist, those of the operator's are made."""
    namespace = draft.key.namespace
    for name in wanted.manifests.expected_claims:
        if await cluster.get(CLAIMS, namespace, name) is None:
            message = (
                f"PersistentVolumeClaim {name} does not exist in namespace {namespace}; create it, or "
                "correct claimName"
            )
            hold(draft, "VolumeClaimMissing", message, running=running)
            return Blocked(LATER)
    for claim in wanted.manifests.claims:
        try:
            await _ensure_claim(cluster, claim)
        except ApiError as error:
            if not error.refused:
                raise
            reason = "QuotaExceeded" if "exceeded quota" in error.message else "VolumeClaimRefused"
            hold(draft, reason, error.message, running=running)
            return Blocked(LATER)
    return None


async def _ensure_claim(cluster: Cluster, claim: Object) -> None:
    """A claim that several nodes can write serves a single one too, and its access mode cannot be changed."""
    metadata = claim["metadata"]
    there = await cluster.get(CLAIMS, metadata["namespace"], metadata["name"])
    if there is None or hash_of(there) != hash_of(claim):
        modes = (there or {}).get("spec", {}).get("accessModes") or []
        if "ReadWriteMany" in modes:
            claim = claim | {"spec": claim["spec"] | {"accessModes": modes}}
        await cluster.apply(CLAIMS, claim)


async def provide_data(
    cluster: Cluster, nodes: Nodes, draft: Draft, wanted: Wanted, *, edited: bool
) -> Blocked | None:
    """Run the preparation, once for each thing asked for."""
    body, digest = wanted.manifests.prepare_job, wanted.manifests.prepare_hash
    if body is None or digest is None or draft.status.prepared == digest:
        told_prepared(draft, wanted)
        return None
    there = await cluster.get(BATCH_JOBS, draft.key.namespace, body["metadata"]["name"])
    if there is not None and deleting(there):
        return Blocked(SOON)
    if there is None:
        draft.set(phase=Phase.PREPARING)
        draft.tell(Condition.PREPARED, False, "Preparing", "the preparation job is being started")
        await cluster.apply(BATCH_JOBS, body)
        return Blocked(LATER)
    conditions = (there.get("status") or {}).get("conditions") or []
    done = {c["type"]: c for c in conditions if c["status"] == "True"}
    outdated = hash_of(there) != digest or not owned_by(there, draft.uid)
    if outdated or ("Failed" in done and edited):
        await cluster.delete(BATCH_JOBS, there)
        return Blocked(SOON)
    if "Complete" in done:
        told_prepared(draft, wanted)
        return None
    name = body["metadata"]["name"]
    pods = await role_pods(cluster, draft, ROLE_PREPARE)
    if "Failed" in done:
        ends = [end.cause for pod in pods if (end := pod_end(pod, name, prepare.CONTAINER))]
        cause = (
            f"preparation failed: {ends[-1] if ends else done['Failed'].get('message', 'no reason given')}"
        )
        draft.tell(Condition.PREPARED, False, "PrepareFailed", cause)
        draft.fail("PrepareFailed", cause)
        return Blocked(LATER)
    # The Job makes no other pod before this one has ended.
    await give_up(cluster, nodes, pods, draft.now)
    obstacle = diagnose(pods, [], name)
    draft.set(phase=Phase.PREPARING)
    if obstacle is None:
        draft.tell(Condition.PREPARED, False, "Preparing", f"job {name} is running")
    else:
        draft.tell(Condition.PREPARED, False, obstacle.reason, obstacle.message)
    return Blocked(LATER)


def told_prepared(draft: Draft, wanted: Wanted) -> None:
    """Say that the data is there: nothing was to be prepared, or it is done."""
    digest = wanted.manifests.prepare_hash
    draft.set(prepared=digest)
    draft.tell(Condition.PREPARED, True, "Prepared" if digest else "NothingToPrepare", "")


async def provide_job(cluster: Cluster, nodes: Nodes, draft: Draft, wanted: Wanted) -> Object | Blocked:
    """Make the job, once no pod of an earlier one is left: two gangs must not write one checkpoint."""
    left = await role_pods(cluster, draft, ROLE_TRAINER)
    if left:
        await give_up(cluster, nodes, left, draft.now)
        starting(draft, "PodsEnding", f"{len(left)} pods of the previous job are ending")
        return Blocked(SOON)
    try:
        job = await cluster.apply(JOBS, avoiding(wanted.manifests.job, draft.recovery.nodes_avoided))
    except ApiError as error:
        if error.not_found:
            message = (
                f"this cluster does not know {pytorchjob.KIND} ({pytorchjob.GROUP}/{pytorchjob.VERSION}); "
                "install the Kubeflow training-operator"
            )
            hold(draft, "PyTorchJobMissing", message, running=False)
        elif error.refused:
            hold(draft, "JobRefused", error.message, running=False)
        else:
            raise
        return Blocked(LATER)
    starting(draft, "JobCreated", "")
    return job


def adopt(draft: Draft, job: dict[str, Any]) -> None:
    """Take notice of a job that is not yet in the status, whoever saw it made."""
    uid = job["metadata"]["uid"]
    if draft.status.job is not None and draft.status.job.uid == uid:
        return
    if draft.recovery.outgoing_job is None:
        part(draft)
    else:
        _change_jobs(draft)
    draft.set(
        job=JobStatus(name=job["metadata"]["name"], uid=uid, hash=hash_of(job) or ""),
        checkpoint=draft.checkpoint.model_copy(update={"contract": contract_of(job)}),
    )
    draft.clear(Condition.FAILED, Condition.SUCCEEDED)


def part(draft: Draft) -> None:
    """Forget what is true of one job alone: it goes, or another has come in its place."""
    _change_jobs(draft)
    draft.set_recovery(restarts_since_checkpoint=0, first_cause=None, checkpoint_iteration=None)
    draft.clear(Condition.RECOVERING)


def _change_jobs(draft: Draft) -> None:
    """The run goes on in another job: what its pods have cost so far still counts."""
    draft.set(job=None, progress=draft.progress.model_copy(update={"generation": None, "eta": None}))
    draft.set_recovery(pods_as_of=None, gang=None, restart_before=None, outgoing_job=None, waiting_since=None)


def starting(draft: Draft, reason: str, message: str) -> None:
    """Tell that pods are on their way, for the first time or again."""
    draft.set(phase=Phase.RECOVERING if draft.is_true(Condition.RECOVERING) else Phase.STARTING)
    draft.tell(Condition.RUNNING, False, reason, message)

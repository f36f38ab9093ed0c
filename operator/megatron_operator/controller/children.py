"""Ensures the objects of a recipe: claims, data preparation, training job. Every step may run twice."""

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.action_runner import force_delete
from megatron_operator.controller.api_client import BATCH_JOBS, CLAIMS, JOBS, PODS, ApiClient, ApiError
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.lifecycle.actions import LATER, SOON, Requeue
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.job_status import set_blocked, set_prepared, set_starting
from megatron_operator.lifecycle.object_metadata import Object, content_hash, is_deleting, owned_by
from megatron_operator.lifecycle.pod_diagnosis import diagnose
from megatron_operator.lifecycle.pod_termination import pod_end
from megatron_operator.lifecycle.snapshot import abandoned_pods
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import prepare, pytorchjob
from megatron_operator.manifests.metadata import ROLE_PREPARE
from megatron_operator.manifests.node_avoidance import avoiding


async def pods_of_role(api: ApiClient, status: StatusBuilder, role: str) -> list[Object]:
    """Pods of the recipe with this role: its trainers or its data preparation."""
    labels = f"{LABEL_RECIPE}={status.key.name},{LABEL_ROLE}={role}"
    return await api.find(PODS, status.key.namespace, labels=labels)


class Children:
    """Ensures the objects that a recipe owns.

    A method that returns a Requeue has set the condition that explains the wait.
    """

    def __init__(self, api: ApiClient, nodes: NodeReader) -> None:
        self._api = api
        self._nodes = nodes

    async def ensure_claims(
        self, status: StatusBuilder, desired: DesiredState, *, running: bool
    ) -> Requeue | None:
        """Check that the user's claims exist, and apply the operator's own; None once they all exist.

        `running` is as for `set_blocked`.
        """
        namespace = status.key.namespace
        for name in desired.manifests.expected_claims:
            if await self._api.get(CLAIMS, namespace, name) is None:
                message = (
                    f"PersistentVolumeClaim {name} does not exist in namespace {namespace}; create it, or "
                    "correct claimName"
                )
                set_blocked(status, Reason.VOLUME_CLAIM_MISSING, message, running=running)
                return Requeue(LATER, Reason.VOLUME_CLAIM_MISSING)
        for claim in desired.manifests.claims:
            try:
                await self._ensure_claim(claim)
            except ApiError as error:
                if not error.refused:
                    raise
                quota = "exceeded quota" in error.message
                reason = Reason.QUOTA_EXCEEDED if quota else Reason.VOLUME_CLAIM_REFUSED
                set_blocked(status, reason, error.message, running=running)
                return Requeue(LATER, reason)
        return None

    async def _ensure_claim(self, claim: Object) -> None:
        """A claim's access mode is immutable, and one for several nodes serves a single node too."""
        metadata = claim["metadata"]
        existing = await self._api.get(CLAIMS, metadata["namespace"], metadata["name"])
        if existing is None or content_hash(existing) != content_hash(claim):
            modes = (existing or {}).get("spec", {}).get("accessModes") or []
            if "ReadWriteMany" in modes:
                claim = claim | {"spec": claim["spec"] | {"accessModes": modes}}
            await self._api.apply(CLAIMS, claim)

    async def ensure_data(
        self, status: StatusBuilder, desired: DesiredState, *, edited: bool
    ) -> Requeue | None:
        """Run the data preparation once for each version of it; None once the data is ready.

        `edited` retries a preparation that failed.
        """
        body, digest = desired.manifests.prepare_job, desired.manifests.prepare_hash
        if body is None or digest is None or status.current.prepared == digest:
            set_prepared(status, desired)
            return None
        name = body["metadata"]["name"]
        existing = await self._api.get(BATCH_JOBS, status.key.namespace, name)
        if existing is not None and is_deleting(existing):
            return Requeue(SOON, "the previous preparation is being deleted")
        if existing is None:
            status.set(phase=Phase.PREPARING)
            message = "the preparation job is being created"
            status.set_condition(Condition.PREPARED, False, Reason.PREPARING, message)
            await self._api.apply(BATCH_JOBS, body)
            return Requeue(LATER, Reason.PREPARING)
        conditions = (existing.get("status") or {}).get("conditions") or []
        done = {c["type"]: c for c in conditions if c["status"] == "True"}
        outdated = content_hash(existing) != digest or not owned_by(existing, status.uid)
        if outdated or ("Failed" in done and edited):
            await self._api.delete(BATCH_JOBS, existing)
            return Requeue(SOON, "the previous preparation is being deleted")
        if "Complete" in done:
            set_prepared(status, desired)
            return None
        pods = await pods_of_role(self._api, status, ROLE_PREPARE)
        if "Failed" in done:
            ends = [end.cause for pod in pods if (end := pod_end(pod, name, prepare.CONTAINER))]
            detail = ends[-1] if ends else done["Failed"].get("message", "no reason given")
            cause = f"preparation failed: {detail}"
            status.set_condition(Condition.PREPARED, False, Reason.PREPARE_FAILED, cause)
            status.fail(Reason.PREPARE_FAILED, cause)
            return Requeue(LATER, Reason.PREPARE_FAILED)
        await self._wait_for_preparation(status, name, pods)
        return Requeue(LATER, Reason.PREPARING)

    async def _wait_for_preparation(self, status: StatusBuilder, name: str, pods: list[Object]) -> None:
        # The Job creates no other pod before this one has ended.
        nodes = await self._nodes.of(pods, status.now)
        await force_delete(self._api, abandoned_pods(pods, nodes, status.now))
        obstacle = diagnose(pods, [], name)
        status.set(phase=Phase.PREPARING)
        if obstacle is None:
            status.set_condition(Condition.PREPARED, False, Reason.PREPARING, f"job {name} is running")
        else:
            status.set_condition(Condition.PREPARED, False, obstacle.reason, obstacle.message)

    async def create_job(self, status: StatusBuilder, desired: DesiredState) -> Object | None:
        """Create the training job; None when the API server rejects it. The condition has the reason.

        To be called once no pod of an earlier job is left: two gangs must not write one checkpoint.
        """
        manifest = avoiding(desired.manifests.job, status.recovery.nodes_avoided)
        try:
            job = await self._api.apply(JOBS, manifest)
        except ApiError as error:
            if error.not_found:
                message = (
                    f"this cluster does not know {pytorchjob.KIND} "
                    f"({pytorchjob.GROUP}/{pytorchjob.VERSION}); install the Kubeflow training-operator"
                )
                set_blocked(status, Reason.PYTORCHJOB_MISSING, message, running=False)
            elif error.refused:
                set_blocked(status, Reason.JOB_REFUSED, error.message, running=False)
            else:
                raise
            return None
        set_starting(status, Reason.JOB_CREATED, "")
        return job

"""Ensures the objects of a recipe: claims, network policy, token, training job. Every step may run twice.

Everything is created with POST and changed only where `lifecycle.children` judges it to be the recipe's own.
"""

import secrets
from typing import Final

from megatron_operator.api.labels import LABEL_RECIPE, LABEL_ROLE
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.api_client import ApiClient, ApiError, lacks_right
from megatron_operator.controller.api_resources import (
    CLAIMS,
    COMPUTE_DOMAINS,
    NETWORK_POLICIES,
    POD_GROUPS,
    PODS,
    RECIPES,
    SECRETS,
    WORKLOAD_PRIORITY_CLASSES,
    Resource,
    training_jobs,
)
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.first_runs import FirstRuns
from megatron_operator.controller.metrics import DECISIONS
from megatron_operator.controller.training_runtime import create_train_job, ensure_runtime
from megatron_operator.lifecycle.actions import LATER, SOON, Requeue
from megatron_operator.lifecycle.children import (
    MISSING_BEFORE_PODS,
    access_obstacle,
    claim_changes,
    claim_obstacle,
    ending_claim,
    job_obstacle,
    missing_claim,
    missing_priority_class,
    obstacle_before_pods,
    policy_changes,
    policy_obstacle,
    recorded_kind,
)
from megatron_operator.lifecycle.desired import DesiredState, has_begun, has_had_job
from megatron_operator.lifecycle.job_status import set_blocked, set_obstacle, set_starting
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.weights_of_recipe import recipe_to_start_from, weights_obstacle
from megatron_operator.manifests import gang_token, jobset, kueue, pytorchjob, recovery_priority, trainjob
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import backend_of
from megatron_operator.manifests.metadata import LONGEST_RECIPE_NAME, Owner
from megatron_operator.manifests.node_avoidance import avoiding

MISSING: Final = {
    pytorchjob.KIND: Reason.PYTORCHJOB_MISSING,
    jobset.KIND: Reason.JOBSET_MISSING,
    trainjob.KIND: Reason.TRAINJOB_MISSING,
}
"""Kind of training job -> reason while the cluster does not know it."""
NOT_CREATED: Final = Requeue(LATER, "the job cannot be created")
JOB_EXISTS: Final = Requeue(SOON, "a job of this name has appeared")
NO_POLICY_RIGHTS: Final = (
    "run helm upgrade with platform.networkPolicies.enabled: true, which gives the operator this right"
)
TOKEN_BYTES: Final = 32
"""Random bytes of the token of a run."""


async def find_own(
    api: ApiClient, resource: Resource, status: StatusBuilder, role: str | None = None
) -> list[Object]:
    """Objects with the recipe's label, and with this role.

    None of a recipe that is refused for its name: no label can have it, nor can one be searched for it.
    """
    if len(status.key.name) > LONGEST_RECIPE_NAME:
        return []
    labels = f"{LABEL_RECIPE}={status.key.name}"
    if role is not None:
        labels += f",{LABEL_ROLE}={role}"
    return await api.find(resource, status.key.namespace, labels=labels)


async def pods_of_role(api: ApiClient, status: StatusBuilder, role: str) -> list[Object]:
    """Pods of the recipe with this role: its trainers or its data preparation."""
    return await find_own(api, PODS, status, role)


async def create(api: ApiClient, resource: Resource, body: Object) -> Object | None:
    """Create an object; None when somebody has created one of its name since it was looked up."""
    try:
        return await api.create(resource, body)
    except ApiError as error:
        if not error.exists:
            raise
        return None


def _exceeds_quota(error: ApiError) -> bool:
    """Whether a ResourceQuota is used up. It is checked before whether the object exists already."""
    return error.refused and "exceeded quota" in error.message


def refusal(error: ApiError, reason: Reason) -> Obstacle:
    """The obstacle of a refused object: a used up quota, or else `reason`."""
    return Obstacle(Reason.QUOTA_EXCEEDED if _exceeds_quota(error) else reason, error.message, LATER)


async def create_or_get(api: ApiClient, resource: Resource, body: Object) -> Object | None:
    """The created object, or the one of its name that exists; None where that has just been deleted.

    A quota refuses also an object that exists, so a refusal is raised only where there is none.
    """
    metadata, refusal = body["metadata"], None
    try:
        if (created := await create(api, resource, body)) is not None:
            return created
    except ApiError as error:
        if not error.refused:
            raise
        refusal = error
    existing = await api.get(resource, metadata["namespace"], metadata["name"])
    if existing is None and refusal is not None:
        raise refusal
    return existing


async def ensure_network_policy(
    api: ApiClient, status: StatusBuilder, policy: Object | None
) -> Obstacle | None:
    """Create the run's NetworkPolicy where the platform wants one, or change it to what it should be."""
    if policy is None:
        return None
    try:
        if (existing := await create_or_get(api, NETWORK_POLICIES, policy)) is None:
            return None
        if (obstacle := policy_obstacle(status, existing)) is not None:
            return obstacle
        if (changes := policy_changes(existing, policy)) is not None:
            await api.merge(NETWORK_POLICIES, existing, changes)
    except ApiError as error:
        if not lacks_right(error):
            raise
        return Obstacle(Reason.JOB_REFUSED, f"{error.message}; {NO_POLICY_RIGHTS}", LATER)
    return None


class Children:
    """Ensures the objects that a recipe owns.

    A method that returns a Requeue has set the condition that explains the wait.
    """

    def __init__(self, api: ApiClient, capacity: CapacityFinder, first_runs: FirstRuns) -> None:
        self._api = api
        self._capacity = capacity
        self._first_runs = first_runs

    async def ensure_claims(
        self, status: StatusBuilder, desired: DesiredState, *, running: bool
    ) -> Requeue | None:
        """Check the user's claims, priority class and weights to start from; create the operator's claims.

        None once that is done. `running` is as for `set_blocked`.
        """
        namespace = status.key.namespace
        if (obstacle := await self._class_obstacle(desired)) is not None:
            return set_obstacle(status, obstacle, running=running)
        for name in desired.manifests.expected_claims:
            existing = await self._api.get(CLAIMS, namespace, name)
            if existing is None:
                return set_obstacle(status, missing_claim(name, namespace), running=running)
            if is_deleting(existing):
                return set_obstacle(status, ending_claim(name), running=running)
            if (obstacle := access_obstacle(desired.manifests, existing)) is not None:
                return set_obstacle(status, obstacle, running=running)
        if (source := recipe_to_start_from(status, desired)) is not None:
            other = await self._api.get(RECIPES, namespace, source)
            if (obstacle := weights_obstacle(desired, source, other)) is not None:
                return set_obstacle(status, obstacle, running=running)
        for claim in desired.manifests.claims:
            try:
                obstacle = await self._ensure_claim(status, desired, claim)
            except ApiError as error:
                if not error.refused:
                    raise
                obstacle = refusal(error, Reason.VOLUME_CLAIM_REFUSED)
            if obstacle is not None:
                return set_obstacle(status, obstacle, running=running)
        return None

    async def _class_obstacle(self, desired: DesiredState) -> Obstacle | None:
        """Why Kueue would never take up the job: its WorkloadPriorityClass does not exist.

        None also where the operator may not list the classes: then the name is trusted.
        """
        if (name := kueue.priority_class(desired.manifests.job)) is None:
            return None
        try:
            found = await self._api.find(WORKLOAD_PRIORITY_CLASSES, None, fields=f"metadata.name={name}")
        except ApiError as error:
            if error.refused or error.not_found:
                return None
            raise
        return None if found else missing_priority_class(name)

    async def has_priority(self, status: StatusBuilder, snapshot: RunSnapshot, desired: DesiredState) -> bool:
        """Whether the job can stay as far as its priority in the queue is concerned, which is set if need be.

        A job that trains is not replaced for a class that the platform names: the next one has it.
        """
        if snapshot.job_phase is JobPhase.SUCCEEDED:
            return True
        named = bool((status.spec.get("scheduling") or {}).get("workloadPriorityClassName"))
        kept = snapshot.job_phase is JobPhase.ACTIVE and not named
        return await self._set_priority_class(snapshot.existing_job, desired) or kept

    async def delete_outdated(self, status: StatusBuilder, job: Object, *, running: bool) -> Requeue | None:
        """Delete the job of an earlier generation; a Requeue while the API server refuses that.

        `running` is as for `set_blocked`.
        """
        if is_deleting(job):
            return None
        try:
            await self._api.delete(training_jobs(job), job)
        except ApiError as error:
            if not error.refused:
                raise
            message = f"the job is not replaced, because it cannot be deleted: {error.message}"
            return set_obstacle(status, Obstacle(Reason.JOB_REFUSED, message, LATER), running=running)
        DECISIONS.labels("replace_job").inc()
        return None

    async def _set_priority_class(self, job: Object, desired: DesiredState) -> bool:
        """Give a job that exists its WorkloadPriorityClass; False where only another job can have it."""
        wanted = desired.manifests.job
        if kueue.has_priority_class(job, wanted):
            return True
        if (changes := kueue.priority_patch(job, wanted)) is None:
            return False
        try:
            await self._api.merge(training_jobs(job), job, changes)
        except ApiError as error:
            # Nor would another job be admitted then.
            if not error.refused or error.webhook_failed:
                raise
            return False
        return True

    async def _ensure_claim(
        self, status: StatusBuilder, desired: DesiredState, claim: Object
    ) -> Obstacle | None:
        """Create a claim, or change the recipe's own to what it should be."""
        metadata = claim["metadata"]
        existing = None
        if not self._first_runs.is_first(status.key):
            existing = await self._api.get(CLAIMS, metadata["namespace"], metadata["name"])
        if existing is None and (existing := await create_or_get(self._api, CLAIMS, claim)) is None:
            return ending_claim(metadata["name"])
        if (obstacle := claim_obstacle(status, desired.manifests, existing)) is not None:
            return obstacle
        if (changes := claim_changes(existing, desired.manifests, claim, status.uid)) is not None:
            await self._api.merge(CLAIMS, existing, changes)
        return None

    async def _ensure_token(self, status: StatusBuilder) -> None:
        """Create the Secret with the run's token. Where one of its name exists, it is the run's already.

        Its name has the recipe's UID. The operator may not read Secrets, so it cannot check more.
        """
        namespace, name = status.key
        token = secrets.token_hex(TOKEN_BYTES)
        try:
            await create(self._api, SECRETS, gang_token.secret(Owner(name, namespace, status.uid), token))
        except ApiError as error:
            # A quota refuses also the Secret that the run's earlier jobs had.
            if not (_exceeds_quota(error) and has_had_job(status)):
                raise

    async def create_job(self, status: StatusBuilder, desired: DesiredState) -> Object | Requeue:
        """Create the training job; a Requeue when the API server rejects it, or something is in its way.

        JOB_EXISTS when a job of this name has appeared, or was not known; the next reconcile judges it. A job
        that exists is never applied over, because a queue may have changed it.

        To be called once no pod of an earlier job is left: two gangs must not write one checkpoint.
        """
        for resource, body in (
            (COMPUTE_DOMAINS, desired.manifests.compute_domain),
            (POD_GROUPS, desired.manifests.pod_group),
        ):
            if body is None:
                continue
            if (waiting := await self._ensure_before_pods(status, resource, body)) is not None:
                return waiting
        manifest = avoiding(desired.manifests.job, status.recovery.nodes_avoided)
        if status.recovery.outgoing_job is not None and has_begun(status):
            manifest = recovery_priority.recovering(manifest)
        manifest = await self._capacity.without_small_domains(status.key, manifest)
        try:
            policy = desired.manifests.network_policy
            if (obstacle := await ensure_network_policy(self._api, status, policy)) is not None:
                return set_obstacle(status, obstacle, running=False)
            await self._ensure_token(status)
            if (obstacle := await self._ensure_templates(status, manifest)) is not None:
                return set_obstacle(status, obstacle, running=False)
            job = await self._create_job(manifest)
        except ApiError as error:
            if error.not_found:
                backend = backend_of(manifest)
                message = (
                    f"this cluster does not know {backend.KIND} "
                    f"({backend.GROUP}/{backend.VERSION}); install {backend.CONTROLLER}"
                )
                set_blocked(status, MISSING[backend.KIND], message, running=False)
            elif error.refused:
                set_blocked(status, Reason.JOB_REFUSED, error.message, running=False)
            else:
                raise
            return NOT_CREATED
        if job is not None:
            DECISIONS.labels("create_job").inc()
            set_starting(status, Reason.JOB_CREATED, "")
            return job
        if recorded_kind(status) != backend_of(manifest).KIND:
            await self._report_taken(status, manifest)
            return NOT_CREATED
        return JOB_EXISTS

    async def _ensure_templates(self, status: StatusBuilder, manifest: Object) -> Obstacle | None:
        """Create what the job takes its pod templates from, where it does not have them itself."""
        for each in backend_of(manifest).objects(manifest)[:-1]:
            if (obstacle := await ensure_runtime(self._api, status, each)) is not None:
                return obstacle
        return None

    async def _create_job(self, manifest: Object) -> Object | None:
        """The created job with its pod templates; None when somebody has created one of its name."""
        backend = backend_of(manifest)
        *sources, body = backend.objects(manifest)
        if not sources:
            return await create(self._api, training_jobs(manifest), body)
        try:
            job = await create_train_job(self._api, training_jobs(manifest), body)
        except ApiError as error:
            if not error.exists:
                raise
            return None
        return backend.with_templates(job, sources[-1])

    async def _report_taken(self, status: StatusBuilder, manifest: Object) -> None:
        """Report that the job's name belongs to something else, of a kind that the snapshot need not have."""
        metadata = manifest["metadata"]
        existing = await self._api.get(training_jobs(manifest), metadata["namespace"], metadata["name"])
        if existing is not None and (obstacle := job_obstacle(status, existing)) is not None:
            set_obstacle(status, obstacle, running=False)

    async def _ensure_before_pods(
        self, status: StatusBuilder, resource: Resource, body: Object
    ) -> Requeue | None:
        """Create an object that the pods need; a Requeue while it cannot be used."""
        metadata, missing = body["metadata"], MISSING_BEFORE_PODS[body["kind"]]
        try:
            existing = await self._api.get(resource, metadata["namespace"], metadata["name"])
            if existing is None and await create(self._api, resource, body) is not None:
                return None
        except ApiError as error:
            if not (error.refused or error.not_found):
                raise
            message = f"{body['kind']} {metadata['name']}: {error.message}"
            set_blocked(status, missing, message, running=False)
            return NOT_CREATED
        if existing is None:  # created by somebody else since it was looked up: the next reconcile judges it
            return NOT_CREATED
        if (obstacle := obstacle_before_pods(status, existing, body)) is None:
            return None
        if obstacle.reason is missing and not is_deleting(existing):
            await self._api.delete(resource, existing)
        return set_obstacle(status, obstacle, running=False)

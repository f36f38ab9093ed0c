"""All Kubernetes objects of one run."""

from dataclasses import dataclass

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import ANNOTATION_HASH
from megatron_operator.manifests import (
    check,
    compute_domain,
    convert,
    gang_scheduling,
    kueue,
    prepare,
    recovery_priority,
)
from megatron_operator.manifests.data_digest import data_digest
from megatron_operator.manifests.env import environment
from megatron_operator.manifests.job_backends import BACKENDS, backend_of
from megatron_operator.manifests.metadata import Manifest, Owner, digest, with_hash
from megatron_operator.manifests.network_policy import network_policy
from megatron_operator.manifests.own_folders import own_folder_errors
from megatron_operator.manifests.pod import image_errors, template
from megatron_operator.manifests.storage import storage
from megatron_operator.planner import PlannedRun, bridge
from megatron_operator.planner.bridge_run import missing_errors


@dataclass(frozen=True, slots=True)
class Manifests:
    """Objects to create for a recipe.

    In this order: claims, import Job, preparation or check Job, NetworkPolicy, ComputeDomain, PodGroup,
    training job, export Jobs.
    """

    claims: tuple[Manifest, ...]
    """Claims that the operator creates."""
    existing_claims: dict[str, Manifest]
    """Name of such a claim -> what it is to be where it exists: without the platform's size and class."""
    expected_claims: tuple[str, ...]
    """Claims that the user names and that must exist."""
    checkpoint_claim: str
    """Name of the claim of the checkpoints, whoever created it."""
    import_job: Manifest | None
    prepare_job: Manifest | None
    check_job: Manifest | None
    """Checks data that were prepared elsewhere; None where there is a preparation Job, or no data."""
    network_policy: Manifest | None
    """None where the platform wants none."""
    compute_domain: Manifest | None
    """ComputeDomain of the run, or None where the profile asks for none or the run has one node."""
    pod_group: Manifest | None
    """PodGroup of Kubernetes' own API, or None where the platform does not schedule gangs with it."""
    job: Manifest
    """With what its backend attaches to it; `objects` of that has what the API server gets."""
    export_job: Manifest | None
    """To be created once the run has succeeded."""
    export_best_job: Manifest | None
    """To be created after `export_job`."""

    @property
    def job_hash(self) -> str:
        """Hash of the job. It does not depend on whether the job must start from a checkpoint."""
        return str(self.job["metadata"]["annotations"][ANNOTATION_HASH])

    @property
    def data_job(self) -> Manifest | None:
        """The Job that prepares the data, or checks them; None where nothing is to be done."""
        return self.check_job if self.prepare_job is None else self.prepare_job

    @property
    def prepare_hash(self) -> str | None:
        """Digest of what is prepared or checked; None where there is no Job for it."""
        return None if self.data_job is None else data_digest(self.data_job)

    def all(self) -> list[Manifest]:
        """The objects in the order in which they are created."""
        before = (*self.claims, self.import_job, self.prepare_job, self.check_job, self.network_policy)
        jobs = backend_of(self.job).objects(self.job)
        of_gang = (self.compute_domain, self.pod_group)
        every = (*before, *of_gang, *jobs, self.export_job, self.export_best_job)
        return [each for each in every if each is not None]


def build(run: PlannedRun, uid: str, *, require_checkpoint: bool = False) -> Manifests:
    """Objects of an admitted recipe; `uid` is that of its MegatronRecipe.

    With `require_checkpoint` a start without a usable checkpoint fails; for runs that are known to have one.
    Raises InvalidRecipeError for a recipe that is not started, would start from itself or export into its
    own folders, and if the image, a volume size or, with engine `bridge`, what the run starts from is
    missing, a variable is reserved, or the name is too long for the kind of job.
    """
    resolved, plan = run.resolved, run.plan
    if not resolved.starts:
        raise InvalidRecipeError([bridge.not_supported_error(resolved)])
    if resolved.engine == "bridge" and (missing := [*missing_errors(resolved), *image_errors(resolved)]):
        raise InvalidRecipeError(missing)
    if missing := convert.image_errors(resolved):
        raise InvalidRecipeError(missing)
    if taken := list(own_folder_errors(run.name, resolved)):
        raise InvalidRecipeError(taken)
    owner = Owner(run.name, run.namespace, uid)
    claims = storage(owner, resolved, plan.nodes)
    queue = resolved.scheduling.queue
    of_queue = kueue.annotations(resolved, plan)

    def job(require: bool) -> Manifest:
        values = environment(resolved, plan, uid, run.name, require_checkpoint=require)
        pods = template(owner, resolved, plan, claims, run.arguments, values)
        if of_queue:
            pods["metadata"]["annotations"] = pods["metadata"].get("annotations", {}) | of_queue
        manifest = BACKENDS[resolved.job_backend].job(owner, plan, pods, queue)
        priority = resolved.scheduling.priority_class_name
        gang_scheduling.apply(manifest, resolved.gang_scheduling, plan, priority)
        return manifest

    plain = job(False)
    final = with_hash(job(True) if require_checkpoint else plain, digest(plain))
    recovery_priority.annotate(final, resolved)
    kueue.set_priority_class(final, resolved)
    return Manifests(
        claims=claims.created,
        existing_claims=claims.existing,
        expected_claims=claims.expected,
        checkpoint_claim=claims.checkpoint,
        import_job=convert.import_job(owner, resolved, claims),
        prepare_job=prepare.job(owner, resolved, claims, run.arguments),
        check_job=check.job(owner, resolved, claims, run.arguments),
        network_policy=network_policy(owner, resolved.network_policies),
        compute_domain=compute_domain.domain(owner, resolved, plan),
        pod_group=gang_scheduling.pod_group(owner, resolved, plan),
        job=final,
        export_job=convert.export_job(owner, resolved, claims),
        export_best_job=convert.export_best_job(owner, resolved, claims),
    )

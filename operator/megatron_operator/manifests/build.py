"""All objects of one run."""

from dataclasses import dataclass

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import ANNOTATION_HASH
from megatron_operator.manifests import prepare, pytorchjob
from megatron_operator.manifests.env import environment
from megatron_operator.manifests.metadata import Manifest, Owner, digest, with_hash
from megatron_operator.manifests.pod import template
from megatron_operator.manifests.storage import storage
from megatron_operator.planner import PlannedRun, bridge


@dataclass(frozen=True, slots=True)
class Manifests:
    """What to apply for a recipe, in this order: claims, preparation, job."""

    claims: tuple[Manifest, ...]
    """Claims that the operator makes."""
    expected_claims: tuple[str, ...]
    """Claims that the user names and that must exist."""
    prepare_job: Manifest | None
    job: Manifest

    @property
    def job_hash(self) -> str:
        """Of the job that is wanted; how it is started (from a checkpoint or not) makes no other job."""
        return str(self.job["metadata"]["annotations"][ANNOTATION_HASH])

    @property
    def prepare_hash(self) -> str | None:
        if self.prepare_job is None:
            return None
        return str(self.prepare_job["metadata"]["annotations"][ANNOTATION_HASH])

    def all(self) -> list[Manifest]:
        return [*self.claims, *([self.prepare_job] if self.prepare_job else []), self.job]


def build(run: PlannedRun, uid: str, *, require_checkpoint: bool = False) -> Manifests:
    """Objects of an admitted recipe; `uid` is that of its MegatronRecipe.

    `require_checkpoint` lets a start without a usable checkpoint fail: for runs that are known to have one.
    Raises InvalidRecipeError where the objects cannot be made: a recipe of engine `bridge`, no image, no
    volume size, a reserved environment name.
    """
    resolved, plan = run.resolved, run.plan
    if resolved.engine == "bridge":
        raise InvalidRecipeError([bridge.not_supported_error(resolved)])
    owner = Owner(run.name, run.namespace, uid)
    claims = storage(owner, resolved, plan.nodes)
    queue = resolved.scheduling.queue
    topology = resolved.scheduling.topology or []

    def job(require: bool) -> Manifest:
        values = environment(resolved, plan, uid, require_checkpoint=require)
        pods = template(owner, resolved, plan, claims, run.arguments, values)
        return pytorchjob.job(owner, plan, pods, queue, topology)

    return Manifests(
        claims=claims.made,
        expected_claims=claims.expected,
        prepare_job=prepare.job(owner, resolved, claims),
        job=with_hash(job(require_checkpoint), digest(job(False))),
    )

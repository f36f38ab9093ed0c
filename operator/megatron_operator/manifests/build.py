"""All objects of one run."""

from dataclasses import dataclass

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import ANNOTATION_HASH
from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.manifests import prepare, pytorchjob
from megatron_operator.manifests.env import environment
from megatron_operator.manifests.metadata import Manifest, Owner, digest, with_hash
from megatron_operator.manifests.pod import template
from megatron_operator.manifests.storage import storage
from megatron_operator.planner import bridge, megatron_arguments


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


def build(
    name: str,
    namespace: str,
    uid: str,
    resolved: ResolvedRecipe,
    plan: Plan,
    *,
    require_checkpoint: bool = False,
) -> Manifests:
    """Objects of the recipe `name`.

    `require_checkpoint` lets a start without a usable checkpoint fail: for runs that are known to have one.
    Raises InvalidRecipeError where the objects cannot be made: a recipe of engine `bridge`, no image, no
    volume size, a reserved environment name.
    """
    if resolved.engine == "bridge":
        raise InvalidRecipeError([bridge.not_started(resolved)])
    owner = Owner(name, namespace, uid)
    claims = storage(owner, resolved, plan.nodes)
    arguments = megatron_arguments(resolved, plan, name)
    queue = resolved.scheduling.queue
    topology = resolved.scheduling.topology or []

    def job(require: bool) -> Manifest:
        values = environment(resolved, plan, uid, require_checkpoint=require)
        pods = template(owner, resolved, plan, claims, arguments, values)
        return pytorchjob.job(owner, plan, pods, queue, topology)

    return Manifests(
        claims=claims.made,
        expected_claims=claims.expected,
        prepare_job=prepare.job(owner, resolved, claims),
        job=with_hash(job(require_checkpoint), digest(job(False))),
    )

"""What a recipe asks for, put through all stages before the cluster."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from megatron_operator import planner
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import GROUP
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.api.validation import parse_spec
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.controller.config_source import Known
from megatron_operator.lifecycle.checkpoint_compatibility import breaches, contract
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests import Manifests, build

ANNOTATION_CONTRACT: Final = f"{GROUP}/checkpoint-contract"
"""On the job: what checkpoints of it fix, as JSON."""
INCOMPATIBLE: Final = "CheckpointIncompatible"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The objects that express a recipe."""

    resolved: ResolvedRecipe
    plan: Plan
    manifests: Manifests
    contract: dict[str, str]
    asked: int
    """`spec.accelerator.count`; an elastic run may lie on fewer."""


def want(draft: Draft, known: Known, count: int | None = None) -> Wanted:
    """What the recipe asks for, on `count` accelerators instead of as many as its status says.

    Raises InvalidRecipeError with all reasons when the recipe cannot be run so.
    """
    namespace, name = draft.key
    spec = parse_spec(draft.spec)
    asked, previous = spec.accelerator.count, draft.status.plan
    count = count or laid_out_on(draft, spec)
    if count != asked:
        spec = spec.model_copy(update={"accelerator": spec.accelerator.model_copy(update={"count": count})})
    if spec.recovery.elastic is not None and previous is not None and count > previous.world_size:
        # What was laid out for want of accelerators is no pattern for more of them.
        previous = None
    run = planner.admit(name, spec, known.platform, known.catalog, namespace, previous)
    # A run with a checkpoint must not begin from nothing because the checkpoint cannot be found.
    require = draft.checkpoint.iteration is not None
    manifests = build(run, draft.uid, require_checkpoint=require)
    fixed = contract(run.resolved, run.plan, run.arguments)
    return Wanted(
        run.resolved, run.plan, replace(manifests, job=_with_contract(manifests.job, fixed)), fixed, asked
    )


def laid_out_on(draft: Draft, spec: MegatronRecipeSpec) -> int:
    """Accelerators of the run: those asked for, or what an elastic run was shrunk to."""
    elastic, shrunk, asked = spec.recovery.elastic, draft.recovery.elastic, spec.accelerator.count
    if elastic is None or shrunk is None or not elastic.min_count <= shrunk.count < asked:
        return asked
    return shrunk.count


def acceptable(draft: Draft, known: Known, count: int) -> bool:
    """Whether the run can go on, with the same batches, on so many accelerators."""
    try:
        wanted = want(draft, known, count)
    except InvalidRecipeError:
        return False
    before = draft.status.plan
    same_batch = before is None or wanted.plan.global_batch_size == before.global_batch_size
    return same_batch and not incompatible(draft, wanted)


def incompatible(draft: Draft, wanted: Wanted) -> list[FieldError]:
    """What the checkpoints that the run has cannot take; nothing while it has none."""
    before = draft.checkpoint.contract
    trained = draft.checkpoint.iteration is not None or bool(draft.progress.iteration)
    if before is None or not trained:
        return []
    return breaches(before, wanted.contract, draft.checkpoint.iteration)


def contract_of(job: dict[str, Any]) -> dict[str, str] | None:
    """The contract that a job was made with."""
    text = (job["metadata"].get("annotations") or {}).get(ANNOTATION_CONTRACT)
    return dict(json.loads(text)) if text else None


def accept(draft: Draft, wanted: Wanted) -> None:
    """Tell how the run lies on its accelerators."""
    plan = wanted.plan
    draft.set(plan=plan)
    if plan.world_size == wanted.asked and draft.recovery.elastic is not None:
        draft.set_recovery(elastic=None)
    sizes = (
        ("TP", plan.tensor_model_parallel_size),
        ("PP", plan.pipeline_model_parallel_size),
        ("CP", plan.context_parallel_size),
        ("DP", plan.data_parallel_size),
    )
    layout = " x ".join(f"{name} {size}" for name, size in sizes)
    count = (
        str(plan.world_size) if plan.world_size == wanted.asked else f"{plan.world_size} of {wanted.asked}"
    )
    pods = f"{plan.nodes} pod{'s' if plan.nodes > 1 else ''} of {plan.per_node}"
    draft.tell(Condition.PLANNED, True, "Planned", f"{layout} = {count}, in {pods}")


def refuse(draft: Draft, reason: str, refused: InvalidRecipeError, *, running: bool) -> None:
    """Tell why the recipe as it is now is not run; a job made for an earlier one goes on."""
    message = str(refused)
    known = draft.condition(Condition.PLANNED)
    if known is None or (known.status, known.reason, known.message) != ("False", reason, message):
        draft.notice(reason, message, warning=True)
    draft.tell(Condition.PLANNED, False, reason, message)
    if not running:
        draft.clear(Condition.FAILED)
        draft.set(phase=Phase.REFUSED)


def _with_contract(job: dict[str, Any], fixed: dict[str, str]) -> dict[str, Any]:
    metadata = job["metadata"]
    annotations = metadata["annotations"] | {ANNOTATION_CONTRACT: json.dumps(fixed)}
    return job | {"metadata": metadata | {"annotations": annotations}}

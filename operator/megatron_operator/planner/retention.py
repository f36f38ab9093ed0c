"""Retention of the layout: a run that has started keeps it.

A checkpoint may not load on another layout, and a better estimate of speed in a later release of this
operator is no reason to start a run again from the beginning.
"""

from megatron_operator.api.parallel_dims import PLAN_FIELDS, SPEC_FIELDS
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.resolved import ResolvedRecipe

_SIZES = tuple(SPEC_FIELDS[dim] for dim in SPEC_FIELDS if SPEC_FIELDS[dim] == PLAN_FIELDS[dim])
_STAGES = (
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
)
_RECOMPUTATION = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
)
_RETAINED = (*_SIZES, *_STAGES, *_RECOMPUTATION)
"""Fields that have the same name in a plan and in `spec.parallelism`."""
_ACCOUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def same_layout(one: Plan, other: Plan) -> bool:
    """Whether two plans have the same layout on the same number of accelerators."""
    names = (*_RETAINED, *_ACCOUNTED, PLAN_FIELDS["vp"], "micro_batch_size", "world_size")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def parallelism_of(previous: Plan, resolved: ResolvedRecipe) -> ParallelismSpec:
    """What the recipe itself sets, completed with the layout of the previous plan.

    Layers and modules of a recomputation other than the recipe's are not taken over.
    """
    fixed = {
        name: value
        for name, value in resolved.parallelism
        if resolved.is_set_by_user(f"parallelism.{ParallelismSpec.model_fields[name].alias}")
        or name not in (*_RETAINED, *_ACCOUNTED, SPEC_FIELDS["vp"])
    }
    kept = {name: getattr(previous, name) for name in _RETAINED} | {
        name: getattr(previous, name) or None for name in _ACCOUNTED
    }
    if previous.pipeline_model_parallel_layout is None:
        kept[SPEC_FIELDS["vp"]] = previous.virtual_pipeline_model_parallel_size
    granularity = resolved.parallelism.recompute_granularity
    asks = resolved.is_set_by_user("parallelism.recomputeGranularity") and granularity is not None
    if asks and granularity != previous.recompute_granularity:
        kept |= {name: getattr(resolved.parallelism, name) for name in _RECOMPUTATION}
    if not resolved.model.num_experts:
        kept |= {"expert_model_parallel_size": None, "expert_tensor_parallel_size": None}
    return ParallelismSpec.model_validate(kept | {name: v for name, v in fixed.items() if v is not None})

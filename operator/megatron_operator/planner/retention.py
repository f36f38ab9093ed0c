"""A run that has begun keeps its layout.

A checkpoint may not load on another, and a better estimate of speed in a later release of this operator is no
reason to start a run anew.
"""

from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.resolved import ResolvedRecipe

_LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
)
"""Fields of a plan that have the name of what asks for them."""
_SPLIT = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def same_layout(one: Plan, other: Plan) -> bool:
    """Whether two plans lie equally on equally many accelerators."""
    names = (*_LAYOUT, *_SPLIT, "virtual_pipeline_model_parallel_size", "micro_batch_size", "world_size")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def parallelism_of(previous: Plan, resolved: ResolvedRecipe) -> ParallelismSpec:
    """The recipe's own wishes, and of the layout that the run has what they leave open."""
    said = {
        name: value
        for name, value in resolved.parallelism
        if resolved.origins.get(f"parallelism.{ParallelismSpec.model_fields[name].alias}", "recipe")
        == "recipe"
        or name not in (*_LAYOUT, *_SPLIT, "num_virtual_stages_per_pipeline_rank")
    }
    kept = {name: getattr(previous, name) for name in _LAYOUT} | {
        name: getattr(previous, name) or None for name in _SPLIT
    }
    if previous.pipeline_model_parallel_layout is None:
        kept["num_virtual_stages_per_pipeline_rank"] = previous.virtual_pipeline_model_parallel_size
    if not resolved.model.num_experts:
        kept |= {"expert_model_parallel_size": None, "expert_tensor_parallel_size": None}
    return ParallelismSpec.model_validate(kept | {name: v for name, v in said.items() if v is not None})

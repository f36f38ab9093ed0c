"""Settings of a Megatron-Bridge function that a run has otherwise, or not at all."""

from dataclasses import dataclass
from typing import Any

from megatron_operator.api.parallel_dims import PLAN_FIELDS, SPEC_FIELDS
from megatron_operator.api.status import Plan
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.published_layouts import layout_settings
from megatron_operator.catalog.resolved import ResolvedRecipe

_SIZES = {
    str(ParallelismSpec.model_fields[field].alias): PLAN_FIELDS[dim] for dim, field in SPEC_FIELDS.items()
}
"""Sizes of `spec.parallelism` -> the plan's field; unset ones are 1."""


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting by its path below `spec`."""

    field: str
    published: Any
    planned: Any
    """None where it is not set."""


def changed_settings(resolved: ResolvedRecipe, plan: Plan) -> list[ChangedSetting]:
    """Layout and fast settings of the recipe's function that the run does not have as published.

    Without a function, or where Megatron-Bridge itself runs it, there are none.
    """
    function = resolved.function or resolved.layout
    if function is None or function.function is None or resolved.engine == "bridge":
        return []
    return [
        ChangedSetting(f"{section}.{leaf}", published, planned)
        for section, leaves in layout_settings(function).items()
        for leaf, published in leaves.items()
        if published is not None
        and not (leaf == "sequenceParallel" and plan.tensor_model_parallel_size == 1)
        and (planned := value_in_use(resolved, plan, section, leaf)) != published
    ]


def value_in_use(resolved: ResolvedRecipe, plan: Plan, section: str, leaf: str) -> Any:
    """The value of a setting of model, training, parallelism or megatronArgs; None where it is not set."""
    if section == "parallelism" and leaf in _SIZES:
        return getattr(plan, _SIZES[leaf]) or 1
    if section == "megatronArgs":
        return resolved.megatron_args.get(leaf)
    of_plan = plan.wire().get(leaf) if section in ("parallelism", "training") else None
    return getattr(resolved, section).wire().get(leaf) if of_plan is None else of_plan

"""Layouts that were considered and not chosen, each with the reason."""

from dataclasses import replace

from megatron_operator.api.base import ApiModel
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Expected, MemoryPerGpu, Plan
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.search.problem import Candidate
from megatron_operator.planner.search.rank import Ranking


class Alternative(ApiModel):
    """A layout that was considered."""

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int
    data_parallel_size: int
    micro_batch_size: int
    recompute_granularity: str | None
    fits: bool
    memory_per_gpu: MemoryPerGpu
    expected: Expected | None
    reason: str
    """Why it was not chosen."""


def alternatives_to(plan: Plan, ranking: Ranking, most: int, *, published: bool) -> list[Alternative]:
    """The `most` best layouts of other sizes, then the smallest of the simpler ones that do not fit.

    `published`: the plan is the catalog's layout, not the planner's choice.
    """
    found: list[Alternative] = []
    seen = {_sizes(ParallelDims.of_plan(plan))}
    for candidate in ranking.candidates:
        if len(found) < most and _sizes(candidate.dims) not in seen:
            seen.add(_sizes(candidate.dims))
            found.append(_alternative(candidate, _comparison(plan, candidate, ranking.error, published)))
    simpler = [c for c in ranking.too_large if c.dims.pp <= plan.pipeline_model_parallel_size]
    too_large = [c for c in simpler if _sizes(c.dims) not in seen]
    if too_large:
        nearest = min(too_large, key=lambda candidate: candidate.memory.total)
        over = (nearest.memory.total - (nearest.memory.capacity or 0)) / GIB
        found.append(_alternative(nearest, f"does not fit: {max(over, 0.1):.1f} GiB too large"))
    return found


def _sizes(dims: ParallelDims) -> ParallelDims:
    """Dimensions that make another layout: TP, PP, CP and EP; the others follow or are details."""
    return replace(dims, dp=1, etp=1, vp=1)


def _comparison(plan: Plan, candidate: Candidate, error: float, published: bool) -> str:
    """Why a candidate was not chosen; `error` is the share below which a gain means nothing."""
    if plan.expected is None or candidate.expected is None:
        return "less simple"
    # Tokens per second, as in the table beside it: a step of twice the time is 50% slower, not 100%.
    gain = plan.expected.step_seconds / candidate.expected.step_seconds - 1
    if gain < -0.005:
        return f"{-gain:.0%} slower"
    speed = f"{gain:.0%} faster as estimated" if gain > 0.005 else "as fast"
    if published:
        return f"{speed}, but not the published layout"
    if not candidate.is_comfortable and candidate.memory.capacity:
        return f"{speed}, but fills {candidate.memory.total / candidate.memory.capacity:.0%} of the memory"
    if gain > 0.005:
        return f"{speed}, less than its error of {error:.0%}"
    return f"{speed}, but less simple"


def _alternative(candidate: Candidate, reason: str) -> Alternative:
    split = candidate.layout.split
    return Alternative.model_validate(
        candidate.dims.plan_fields()
        | {
            "virtual_pipeline_model_parallel_size": split.virtual if split else None,
            "micro_batch_size": candidate.micro_batch,
            "recompute_granularity": candidate.recompute,
            "fits": candidate.fits,
            "memory_per_gpu": candidate.memory,
            "expected": candidate.expected,
            "reason": reason,
        }
    )

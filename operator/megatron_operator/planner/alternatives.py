"""Other layouts than the one that is taken, with the reason why it is not them."""

from megatron_operator.api.base import ApiModel
from megatron_operator.api.status import Expected, MemoryPerGpu, Plan
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.search.problem import Candidate
from megatron_operator.planner.search.rank import Ranking


class Alternative(ApiModel):
    """A layout that was weighed."""

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
    """Why it is not the plan."""


def alternatives_to(plan: Plan, ranking: Ranking, most: int, *, published: bool) -> list[Alternative]:
    """The best layouts of other sizes; after them the nearest miss among simpler ones that are too large.

    `published`: the plan is the catalog's layout, not the planner's choice.
    """
    found: list[Alternative] = []
    seen = {_sizes_of_plan(plan)}
    for candidate in ranking.candidates:
        if len(found) < most and _sizes(candidate) not in seen:
            seen.add(_sizes(candidate))
            found.append(_alternative(candidate, _comparison(plan, candidate, published)))
    simpler = [c for c in ranking.too_large if c.layout.pp <= plan.pipeline_model_parallel_size]
    too_large = [c for c in simpler if _sizes(c) not in seen]
    if too_large:
        nearest = min(too_large, key=lambda candidate: candidate.memory.total)
        over = (nearest.memory.total - (nearest.memory.capacity or 0)) / GIB
        found.append(_alternative(nearest, f"does not fit: {max(over, 0.1):.1f} GiB too large"))
    return found


def _sizes(candidate: Candidate) -> tuple[int, int, int, int]:
    layout = candidate.layout
    return layout.tp, layout.pp, layout.cp, layout.ep


def _sizes_of_plan(plan: Plan) -> tuple[int, int, int, int]:
    return (
        plan.tensor_model_parallel_size,
        plan.pipeline_model_parallel_size,
        plan.context_parallel_size,
        plan.expert_model_parallel_size,
    )


def _comparison(plan: Plan, candidate: Candidate, published: bool) -> str:
    if plan.expected is None or candidate.expected is None:
        return "less simple"
    part = candidate.expected.step_seconds / plan.expected.step_seconds - 1
    if part > 0.005:
        return f"{part:.0%} slower"
    speed = f"{-part:.0%} faster as estimated" if part < -0.005 else "as fast"
    if published:
        return f"{speed}, but not the published layout"
    if not candidate.is_comfortable and candidate.memory.capacity:
        return f"{speed}, but fills {candidate.memory.total / candidate.memory.capacity:.0%} of the memory"
    return f"{speed}, but less simple"


def _alternative(candidate: Candidate, reason: str) -> Alternative:
    layout = candidate.layout
    return Alternative(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.split.virtual if layout.split else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        data_parallel_size=candidate.dp,
        micro_batch_size=candidate.micro_batch,
        recompute_granularity=candidate.recompute,
        fits=candidate.fits,
        memory_per_gpu=candidate.memory,
        expected=candidate.expected,
        reason=reason,
    )

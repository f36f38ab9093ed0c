"""How long a whole run takes, what it costs, and what its global batch leaves of many accelerators."""

import math
from dataclasses import dataclass

from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.planner.durations import duration

LONG_DAYS = 60
"""Days above which the count that makes it a month is named."""
MONTH_DAYS = 30
DAY = 86400.0
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a whole run without interruptions; `total` is in the currency of the price."""

    gpu_hours: float
    total: float


def run_seconds(plan: Plan) -> float | None:
    """Estimated seconds of all iterations; None where speed or length is unknown."""
    if plan.expected is None or not plan.train_iters:
        return None
    return plan.expected.step_seconds * plan.train_iters


def cost(plan: Plan, price: float) -> Cost | None:
    """Cost at a price per accelerator and hour; None where the run's length is unknown."""
    seconds = run_seconds(plan)
    if seconds is None:
        return None
    hours = seconds * plan.world_size / _HOUR
    return Cost(hours, hours * price)


def length(plan: Plan) -> str | None:
    """`7.6 years without interruptions; 30 days need about 5,952 GPUs ...`; None where it is unknown."""
    seconds = run_seconds(plan)
    if seconds is None:
        return None
    text = f"{duration(seconds)} without interruptions, as estimated"
    if seconds <= LONG_DAYS * DAY:
        return text
    count = month_count(plan, seconds)
    text += f"; for {MONTH_DAYS} days take about {count:,} GPUs at this speed per GPU"
    least = _least_batch(plan, count)
    return text if least <= plan.global_batch_size else f"{text}, and a globalBatchSize of at least {least:,}"


def month_count(plan: Plan, seconds: float) -> int:
    """Whole pods' accelerators that make a run of `seconds` a month, at the same speed per accelerator.

    The least number of pods over which the batch can be divided, if one is below twice as many as needed.
    """
    needed = math.ceil(plan.nodes * seconds / (MONTH_DAYS * DAY))
    fitting = (pods for pods in range(needed, 2 * needed) if _takes(plan, pods * plan.per_node))
    return next(fitting, needed) * plan.per_node


def _takes(plan: Plan, count: int) -> bool:
    """Whether the layout and the global batch of a plan can be divided over `count` accelerators."""
    dims = ParallelDims.of_plan(plan)
    ranks, rest = divmod(count, dims.tp * dims.pp * dims.cp)
    return rest == 0 and plan.global_batch_size % (ranks * plan.micro_batch_size) == 0


def _least_batch(plan: Plan, count: int) -> int:
    """Samples with which every data-parallel rank of `count` accelerators has one for each pipeline stage."""
    dims = ParallelDims.of_plan(plan)
    return math.ceil(count / (dims.tp * dims.pp * dims.cp)) * plan.micro_batch_size * dims.pp


def batch_remark(plan: Plan) -> str | None:
    """Why a global batch is too small for the count; None where it is large enough."""
    dims = ParallelDims.of_plan(plan)
    if plan.gradient_accumulation > dims.pp or plan.global_batch_size >= plan.world_size:
        return None
    ranks = plan.global_batch_size // plan.micro_batch_size
    some = "one rank" if ranks == 1 else f"{ranks:,} ranks"
    return (
        f"too small for {plan.world_size:,} GPUs: at most {some} can be data parallel, and "
        f"{dims.tp * dims.pp * dims.cp} GPUs share a sample; set a larger training.globalBatchSize (with its "
        "learning rate), or take fewer GPUs"
    )

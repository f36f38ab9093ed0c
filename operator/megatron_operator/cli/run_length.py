"""How long a whole run takes, what it costs, and what its global batch leaves of many accelerators."""

import math
from dataclasses import dataclass

from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Plan
from megatron_operator.planner.batch import full_steps
from megatron_operator.planner.durations import duration

LONG_DAYS = 60
"""Days above which the count that makes it a month is named."""
MONTH_DAYS = 30
DAY = 86400.0
_HOUR = 3600.0
_NODE = 8
"""A count of which nodes of 1, 2, 4 or 8 accelerators are whole; a run on one node may use part of it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a whole run without interruptions; `total` is in the currency of the price."""

    gpu_hours: float
    total: float


def run_seconds(plan: Plan) -> float | None:
    """Estimated seconds of all iterations; None where speed or length is unknown.

    Under a ramp-up of the batch at the speed of the largest.
    """
    steps = full_steps(plan)
    if plan.expected is None or not steps:
        return None
    return plan.expected.step_seconds * steps


def cost(plan: Plan, price: float) -> Cost | None:
    """Cost at a price per accelerator and hour; None where the run's length is unknown."""
    seconds = run_seconds(plan)
    if seconds is None:
        return None
    hours = seconds * plan.world_size / _HOUR
    return Cost(hours, hours * price)


def length(plan: Plan, *, in_iterations: bool) -> str | None:
    """`7.6 years without interruptions; 30 days need about 5,952 GPUs ...`; None where it is unknown.

    `in_iterations`: as in `for_a_month`.
    """
    seconds = run_seconds(plan)
    if seconds is None:
        return None
    text = f"{duration(seconds)} without interruptions, as estimated"
    if seconds <= LONG_DAYS * DAY:
        return text
    return f"{text}; {for_a_month(plan, seconds, in_iterations=in_iterations)}"


def for_a_month(plan: Plan, seconds: float, *, in_iterations: bool) -> str:
    """`for 30 days take about 9,600 GPUs ...`, of a run of `seconds`: a count and a batch with a plan.

    `in_iterations`: whether settings give the run's length in iterations, which with a larger batch train
    more tokens, so that as many fewer are named.
    """
    count = month_count(plan, seconds)
    text = f"for {MONTH_DAYS} days take about {count:,} GPUs at this speed per GPU"
    batch = _month_batch(plan, count)
    if batch == plan.global_batch_size:
        return text
    text += f", and globalBatchSize {batch:,}"
    if not in_iterations or plan.train_iters is None:
        return text
    return f"{text} with trainIters {math.ceil(plan.train_iters * plan.global_batch_size / batch):,}"


def month_count(plan: Plan, seconds: float) -> int:
    """Accelerators of whole nodes that make a run of `seconds` a month, at the same speed per accelerator.

    The plan's layout divides them; the least over which its batch can be divided too, if one is below twice
    as many as needed.
    """
    dims = ParallelDims.of_plan(plan)
    unit = math.lcm(
        plan.per_node if plan.nodes > 1 else math.lcm(plan.per_node, _NODE),
        dims.tp * dims.pp * dims.cp,
        dims.etp * dims.ep * dims.pp,
    )
    needed = math.ceil(plan.world_size * seconds / (MONTH_DAYS * DAY))
    first = math.ceil(needed / unit) * unit
    return next((count for count in range(first, 2 * needed, unit) if _takes(plan, count)), first)


def _takes(plan: Plan, count: int) -> bool:
    """Whether a plan's global batch can be divided over `count` accelerators, which its layout divides."""
    return plan.global_batch_size % (_data_parallel(plan, count) * plan.micro_batch_size) == 0


def _data_parallel(plan: Plan, count: int) -> int:
    dims = ParallelDims.of_plan(plan)
    return count // (dims.tp * dims.pp * dims.cp)


def _month_batch(plan: Plan, count: int) -> int:
    """Samples with which every data-parallel rank of `count` accelerators has one for each pipeline stage.

    The plan's own batch where that has as many and can be divided, or else a multiple.
    """
    pp = ParallelDims.of_plan(plan).pp
    least, batch = _data_parallel(plan, count) * plan.micro_batch_size * pp, plan.global_batch_size
    return batch if batch >= least and _takes(plan, count) else math.ceil(batch / least) * least


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

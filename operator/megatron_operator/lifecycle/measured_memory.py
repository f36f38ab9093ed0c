"""From the memory that pods report to the status: the most that each pipeline stage has reserved."""

from collections.abc import Iterable

from megatron_contract.limits import MAX_STAGES
from megatron_contract.progress import ReportedMemory, fullest_ranks

from megatron_operator.api.memory_status import MeasuredMemory, StageMemory
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Plan


def merge(
    known: MeasuredMemory | None, reported: Iterable[ReportedMemory], plan: Plan, job: str | None
) -> MeasuredMemory | None:
    """What is known with what pods report now; of another job or layout than the plan's, nothing is.

    Ranks that were started again report less than before until they have trained for a while. Stages that
    the plan does not have are left out; of more than MAX_STAGES the fullest stay.
    """
    layout = _layout(plan)
    before = known.stages if known is not None and (known.job, known.layout) == (job, layout) else []
    ranks = [ReportedMemory(each.rank, each.stage, each.bytes) for each in before]
    planned = [
        each for each in fullest_ranks([*ranks, *reported]) if each.stage < plan.pipeline_model_parallel_size
    ]
    if not planned:
        return None
    fullest = sorted(planned, key=lambda each: -each.bytes)[:MAX_STAGES]
    stages = [
        StageMemory(stage=each.stage, rank=each.rank, bytes=each.bytes)
        for each in sorted(fullest, key=lambda each: each.stage)
    ]
    return MeasuredMemory(job=job, layout=layout, stages=stages)


def _layout(plan: Plan) -> str:
    """What the memory depends on: `TP 4 x PP 4 x CP 2 x DP 2, micro batch 1, recompute selective`."""
    dims = ParallelDims.of_plan(plan)
    text = f"TP {dims.tp} x PP {dims.pp} x CP {dims.cp} x DP {dims.dp}"
    if dims.ep > 1:
        text += f", EP {dims.ep} x ETP {dims.etp}"
    text += f", micro batch {plan.micro_batch_size}"
    return text if plan.recompute_granularity is None else f"{text}, recompute {plan.recompute_granularity}"

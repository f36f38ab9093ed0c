"""Every layout that keeps what is asked for and obeys the rules; the reasons when there is none."""

from collections.abc import Iterator
from dataclasses import replace

from megatron_operator.api.errors import FieldError
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.search.constraints import Layout, layout_errors, stages_error
from megatron_operator.planner.search.pipeline_split import (
    StageSplit,
    automatic_split,
    interleaved_layout,
    interleaving_error,
    requested_split,
)
from megatron_operator.planner.search.problem import PlanningProblem

TOKENS_PER_CP_RANK = 8192
"""Sequences up to this long are not split; longer ones may be, down to this length."""
FEW_CHUNKS = 8
"""Where no number of virtual stages up to this makes equal chunks, unequal ones are weighed too."""
MOST_CHUNKS = 4
"""Numbers of virtual stages that are weighed for one layout."""


def valid_layouts(problem: PlanningProblem) -> list[Layout]:
    """All layouts without an error, virtual stages not yet chosen."""
    setting = problem.setting
    return [layout for layout in _all(problem) if layout.split and not layout_errors(layout, setting)]


def data_parallel(problem: PlanningProblem, layout: Layout) -> int:
    """DP of a layout."""
    return problem.world // (layout.tp * layout.pp * layout.cp)


def _all(problem: PlanningProblem) -> Iterator[Layout]:
    asked, shape, world = problem.asked, problem.shape, problem.world
    tps = _only(asked.tensor_model_parallel_size) or _powers(problem.pod, dividing=problem.pod)
    longest = max(problem.seq_length // TOKENS_PER_CP_RANK, 1)
    cps = _only(asked.context_parallel_size) or _powers(longest, dividing=world)
    pps = _only(asked.pipeline_model_parallel_size) or [
        pp for pp in range(1, min(shape.layers, world) + 1) if world % pp == 0
    ]
    experts = 1 if problem.on_cpu else max(shape.experts, 1)
    eps = _only(asked.expert_model_parallel_size) or [
        ep for ep in range(1, experts + 1) if experts % ep == 0 and world % ep == 0
    ]
    for pp in pps:
        split = stage_split(problem, pp, [])
        for tp in tps:
            for cp in cps:
                if world % (tp * cp * pp) == 0 or len(tps) == len(cps) == len(pps) == 1:
                    for ep in eps:
                        yield Layout(tp, pp, cp, ep, expert_tensor_parallel(problem, tp), split)


def _only(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _powers(limit: int, *, dividing: int) -> list[int]:
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit and dividing % 2**k == 0]


def expert_tensor_parallel(problem: PlanningProblem, tp: int) -> int:
    """1 unless asked: experts stay whole. Without experts it is TP, Megatron's own default."""
    return problem.asked.expert_tensor_parallel_size or (1 if problem.shape.experts else tp)


def stage_split(problem: PlanningProblem, pp: int, errors: list[FieldError]) -> StageSplit | None:
    """Layers on the stages as asked for, else as even as can be; none with the reasons in `errors`."""
    asked, shape = problem.asked, problem.shape
    found: list[FieldError] = []
    split = requested_split(shape.layers, shape.mtp_layers, pp, asked, found)
    if split is None and not found:
        split = _automatic(shape, pp, asked.num_virtual_stages_per_pipeline_rank)
    if split is not None and (error := interleaving_error(split, pp, overlap=True)):
        found.append(error)
    errors += found
    return None if found else split


def _automatic(shape: ModelShape, pp: int, virtual: int | None) -> StageSplit | None:
    """A split of the planner's own, with the virtual stages that are asked for."""
    split = automatic_split(shape.layers, pp, shape.mtp_layers)
    if split is None or virtual is None:
        return split
    split = replace(split, virtual=virtual)
    if interleaving_error(split, pp, overlap=True):
        return interleaved_layout(shape.layers, shape.mtp_layers, pp, virtual) or split
    return split


def interleavings(problem: PlanningProblem, layout: Layout, micro_batches: list[int]) -> list[Layout]:
    """The layout as it is, and with virtual stages where the planner may choose them."""
    split, pp = layout.split, layout.pp
    if split is None or split.virtual is not None or split.layout is not None or pp == 1:
        return [layout]
    if not problem.interleave or problem.on_cpu or any(m % pp for m in micro_batches):
        return [layout]
    chunked = [
        trial
        for virtual in range(2, max(split.layers) + 2)
        if interleaving_error(trial := replace(split, virtual=virtual), pp, overlap=True) is None
    ]
    if not _split_asked(problem) and (not chunked or (chunked[0].virtual or 0) > FEW_CHUNKS):
        shape = problem.shape
        dealt = (interleaved_layout(shape.layers, shape.mtp_layers, pp, v) for v in range(2, FEW_CHUNKS + 1))
        chunked = [each for each in dealt if each is not None] + chunked
    return [layout, *(replace(layout, split=each) for each in chunked[:MOST_CHUNKS])]


def _split_asked(problem: PlanningProblem) -> bool:
    asked = problem.asked
    return bool(
        asked.decoder_first_pipeline_num_layers is not None
        or asked.decoder_last_pipeline_num_layers is not None
        or asked.account_for_embedding_in_pipeline_split
        or asked.account_for_loss_in_pipeline_split
    )


def batch_errors(problem: PlanningProblem, layout: Layout, micro_batch: int) -> list[FieldError]:
    """Global batches that do not divide over the layout's ranks."""
    dp = data_parallel(problem, layout)
    each = micro_batch * dp
    ramp = problem.resolved.training.step_batch_size_schedule is not None
    name = "stepBatchSizeSchedule" if ramp else "globalBatchSize"
    errors = []
    for batch in problem.batches:
        if batch % each:
            below = batch // each * each
            near = f"{below} or {below + each}" if below else f"{each}"
            errors.append(
                FieldError(
                    f"spec.training.{name}",
                    f"{batch} is not divisible by microBatchSize {micro_batch} x DP {dp} = {each}",
                    f"set {near}",
                )
            )
        elif layout.split and (layout.split.virtual or 1) > 1 and batch // each % layout.pp:
            errors.append(
                FieldError(
                    "spec.parallelism.numVirtualStagesPerPipelineRank",
                    f"interleaving needs a multiple of PP {layout.pp} micro batches, "
                    f"{name} {batch} makes {batch // each}",
                    f"set a {name} that is a multiple of {each * layout.pp}, or no virtual stages",
                )
            )
    return errors


def refusal(problem: PlanningProblem) -> list[FieldError]:
    """What is wrong with the layout that was asked for, everything not said being 1."""
    asked = problem.asked
    tp, pp = asked.tensor_model_parallel_size or 1, asked.pipeline_model_parallel_size or 1
    split_errors: list[FieldError] = []
    base = Layout(
        tp,
        pp,
        asked.context_parallel_size or 1,
        asked.expert_model_parallel_size or 1,
        expert_tensor_parallel(problem, tp),
        stage_split(problem, pp, split_errors),
    )
    found = layout_errors(base, problem.setting)
    if base.split is None:
        found += split_errors or [stages_error(base, problem.shape)]
    if problem.world % (base.tp * base.pp * base.cp) == 0:
        found += batch_errors(problem, base, problem.micro_batch or 1)
    return found

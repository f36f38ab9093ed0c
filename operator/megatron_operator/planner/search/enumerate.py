"""All layouts that keep what is requested and satisfy the constraints; the errors when there is none."""

import math
from collections.abc import Iterator
from dataclasses import replace

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds
from megatron_operator.planner.estimate.shared_selection import selecting_layers, shares_selection
from megatron_operator.planner.search.constraints import Layout, layout_errors, stages_error
from megatron_operator.planner.search.pipeline_split import (
    StageSplit,
    automatic_split,
    interleaved_layout,
    interleaving_error,
    requested_split,
    split_before,
)
from megatron_operator.planner.search.problem import PlanningProblem

TOKENS_PER_CP_RANK = 8192
"""Tokens per rank down to which long sequences are split."""
SHORTEST_SPLIT, SMALL_CP = 4096, 4
"""Sequences of at least the first number of tokens may be split over the second number of ranks: it saves as
many activations as pipeline stages do, without a bubble. Published recipes have CP 2 at 8,192 tokens and CP 4
at 4,096."""
MAX_UNEVEN_CHUNKS = 8
"""Uneven chunks are considered where no number of virtual stages up to this one makes even chunks."""
MAX_SIZES = 16
"""Sizes of PP and of EP that are considered: of numbers with more divisors, some are left out."""
MAX_VIRTUAL_STAGES = 20
"""The most of a published layout (Llama 3 70B with PP 4): each chunk of layers has messages of its own."""
MAX_INTERLEAVINGS = 8
"""Numbers of virtual stages that are considered for one layout: of more divisors, some are left out."""


def valid_layouts(problem: PlanningProblem) -> list[Layout]:
    """All layouts without an error, virtual stages not chosen yet."""
    context = problem.constraints
    return [layout for layout in _all(problem) if layout.split and not layout_errors(layout, context)]


def _all(problem: PlanningProblem) -> Iterator[Layout]:
    asked, shape, world = problem.asked, problem.shape, problem.world
    tps = _only(asked.tensor_model_parallel_size) or _powers(problem.pod, dividing=problem.pod)
    cps = _only(asked.context_parallel_size) or _powers(largest_cp(problem), dividing=world)
    pps = _only(asked.pipeline_model_parallel_size) or _considered(
        divisors(world, shape.layers), shape.layers
    )
    experts = 1 if problem.on_cpu else max(shape.experts, 1)
    eps = _only(asked.expert_model_parallel_size) or _considered(divisors(math.gcd(experts, world)), experts)
    for pp in pps:
        split = stage_split(shape, asked, pp, Diagnostics())
        for tp in tps:
            for cp in cps:
                if world % (tp * cp * pp) == 0 or len(tps) == len(cps) == len(pps) == 1:
                    for ep in eps:
                        yield _layout(problem, tp, pp, cp, ep, split)


def _layout(problem: PlanningProblem, tp: int, pp: int, cp: int, ep: int, split: StageSplit | None) -> Layout:
    """A layout of these sizes; DP is what is left of the world, rounded down."""
    dp = problem.world // (tp * pp * cp)
    virtual = (split.virtual if split else None) or 1
    etp = expert_tensor_parallel(problem, tp)
    return Layout(ParallelDims(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, etp=etp, vp=virtual), split)


def _spread[T](values: list[T], most: int) -> list[T]:
    """At most `most` of the values, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


def largest_cp(problem: PlanningProblem, micro_batch: int = 1) -> int:
    """The largest CP to consider; larger micro batches would undo what splits a short sequence."""
    long = max(problem.seq_length // TOKENS_PER_CP_RANK, 1)
    split_short = problem.refine and problem.seq_length >= SHORTEST_SPLIT and micro_batch == 1
    return max(long, SMALL_CP) if split_short else long


def _only(value: int | None) -> list[int]:
    return [] if value is None else [value]


def _powers(limit: int, *, dividing: int) -> list[int]:
    return [2**k for k in range(limit.bit_length()) if 2**k <= limit and dividing % 2**k == 0]


def _considered(sizes: list[int], divided: int) -> list[int]:
    """At most MAX_SIZES of these sizes in order: powers of two and divisors of `divided`, then small ones."""
    if len(sizes) <= MAX_SIZES:
        return sizes
    usual = [size for size in sizes if size & (size - 1) == 0 or divided % size == 0]
    if len(usual) > MAX_SIZES:
        return _spread(usual, MAX_SIZES)
    others = [size for size in sizes if size not in usual]
    return sorted([*usual, *others[: MAX_SIZES - len(usual)]])


def expert_tensor_parallel(problem: PlanningProblem, tp: int) -> int:
    """ETP: 1 unless requested, so that experts stay whole. Without experts TP, as Megatron's default."""
    return problem.asked.expert_tensor_parallel_size or (1 if problem.shape.experts else tp)


def stage_split(shape: ModelShape, asked: ParallelismSpec, pp: int, found: Diagnostics) -> StageSplit | None:
    """Layers of the stages as requested, else as even as possible; none with the errors in `found`."""
    errors = Diagnostics()
    split = requested_split(shape.layers, shape.mtp_layers, pp, asked, errors)
    shared = shares_selection(shape) and asked.pipeline_model_parallel_layout is None
    if not errors.errors and (split is None or (shared and not _requests_split(asked))):
        split = _automatic(shape, pp, asked.num_virtual_stages_per_pipeline_rank)
    if split is not None and (error := interleaving_error(split, pp)):
        errors.extend([error])
    found.extend(errors.errors)
    return None if errors.errors else split


def takes_more_virtual_stages(shape: ModelShape, asked: ParallelismSpec, pp: int, present: int) -> bool:
    """Whether the stages can be split into more virtual ones than `present`."""
    name = "num_virtual_stages_per_pipeline_rank"
    larger = (asked.model_copy(update={name: n}) for n in range(present + 1, MAX_VIRTUAL_STAGES + 1))
    return any(stage_split(shape, each, pp, Diagnostics()) for each in larger)


def _automatic(shape: ModelShape, pp: int, virtual: int | None) -> StageSplit | None:
    """A split of the planner's choice, with the virtual stages that are requested."""
    if shares_selection(shape) and pp > 1:
        starts = selecting_layers(shape)
        if split := split_before(starts, shape.layers, shape.mtp_layers, pp, virtual):
            return split
    split = automatic_split(shape.layers, pp)
    if shape.hybrid and split is not None and not (split.even or split.last):
        return None  # Megatron splits a hybrid pattern evenly, or by the layers of the first and last stage.
    if (
        any(kind.mixer == "parallel" for kind in distinct_kinds(shape))
        and split is not None
        and not split.even
    ):
        return None  # `FalconH1Stack` splits its layers evenly.
    if split is None or virtual is None:
        return split
    split = replace(split, virtual=virtual)
    if interleaving_error(split, pp):
        return interleaved_layout(shape.layers, shape.mtp_layers, pp, virtual) or split
    return split


def interleavings(problem: PlanningProblem, layout: Layout, micro_batches: list[int]) -> list[Layout]:
    """The layout with virtual stages, where the planner may add them.

    `micro_batches` are those of one data-parallel rank per step, for each global batch size.
    """
    split, pp = layout.split, layout.dims.pp
    if split is None or split.virtual is not None or split.layout is not None or pp == 1:
        return []
    if not problem.refine or problem.on_cpu or any(m % pp for m in micro_batches):
        return []
    if shares_selection(problem.shape):
        return []  # Equal chunks would begin with layers that have no indexer.
    if problem.shape.hybrid or problem.shape.towers or problem.shape.has_special_layers:
        # They need separators in the hybrid pattern; with a vision tower nothing was trained in them, and
        # Megatron-Bridge builds Falcon-H1 and Llama-Nemotron without them.
        return []
    if not problem.constraints.virtual_stages:
        return []
    chunked = [
        trial
        for virtual in divisors(math.gcd(*split.counted))[1:]
        if virtual <= MAX_VIRTUAL_STAGES
        and interleaving_error(trial := replace(split, virtual=virtual), pp) is None
    ]
    if not _requests_split(problem.asked) and (not chunked or (chunked[0].virtual or 0) > MAX_UNEVEN_CHUNKS):
        shape = problem.shape
        uneven = (
            interleaved_layout(shape.layers, shape.mtp_layers, pp, virtual)
            for virtual in range(2, MAX_UNEVEN_CHUNKS + 1)
        )
        chunked = [each for each in uneven if each is not None] + chunked
    return [layout.with_split(each) for each in _spread(chunked, MAX_INTERLEAVINGS)]


def _requests_split(asked: ParallelismSpec) -> bool:
    return bool(
        asked.decoder_first_pipeline_num_layers is not None
        or asked.decoder_last_pipeline_num_layers is not None
        or asked.account_for_embedding_in_pipeline_split
        or asked.account_for_loss_in_pipeline_split
    )


def batch_errors(problem: PlanningProblem, layout: Layout, micro_batch: int) -> list[FieldError]:
    """Global batch sizes that cannot be split over the layout's ranks."""
    dims, found = layout.dims, Diagnostics()
    each = micro_batch * dims.dp
    ramp = problem.resolved.training.step_batch_size_schedule is not None
    name = "stepBatchSizeSchedule" if ramp else "globalBatchSize"
    for batch in problem.batches:
        if batch % each:
            lower = batch // each * each
            nearest = f"{lower} or {lower + each}" if lower else f"{each}"
            found.error(
                f"spec.training.{name}",
                f"{batch} is not divisible by microBatchSize {micro_batch} x DP {dims.dp} = {each}",
                f"set {nearest}",
            )
        elif dims.vp > 1 and batch // each % dims.pp:
            found.error(
                "spec.parallelism.numVirtualStagesPerPipelineRank",
                f"interleaving needs a multiple of PP {dims.pp} micro batches, "
                f"{name} {batch} makes {batch // each}",
                f"set a {name} that is a multiple of {each * dims.pp}, or no virtual stages",
            )
    return found.errors


def refusal(problem: PlanningProblem) -> list[FieldError]:
    """What is wrong with the requested layout; sizes that are not requested are 1."""
    asked, split_errors = problem.asked, Diagnostics()
    pp = asked.pipeline_model_parallel_size or 1
    layout = _layout(
        problem,
        asked.tensor_model_parallel_size or 1,
        pp,
        asked.context_parallel_size or 1,
        asked.expert_model_parallel_size or 1,
        stage_split(problem.shape, asked, pp, split_errors),
    )
    found = layout_errors(layout, problem.constraints)
    if layout.split is None:
        found += split_errors.errors or [stages_error(layout, problem.shape)]
    sizes = (
        asked.tensor_model_parallel_size,
        asked.pipeline_model_parallel_size,
        asked.context_parallel_size,
    )
    # Beside other errors, a batch is wrong for certain only where the data parallel size is.
    if (not found or None not in sizes) and problem.world % layout.dims.model_parallel == 0:
        found += batch_errors(problem, layout, problem.micro_batch or 1)
    return found

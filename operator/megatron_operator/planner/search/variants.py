"""What a layout may be completed with: micro batch sizes, virtual stages and recomputation."""

from collections.abc import Iterator
from dataclasses import replace

from megatron_operator.planner.checks.precision import cheap_modules
from megatron_operator.planner.estimate.memory import memory_per_gpu
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.workload import Recomputation, Workload, optimizer_instances
from megatron_operator.planner.search.constraints import Layout, Recompute
from megatron_operator.planner.search.enumerate import batch_errors, interleavings, largest_cp, valid_layouts
from megatron_operator.planner.search.problem import Candidate, PlanningProblem

MICRO_BATCHES = (1, 2, 4, 8)
"""Micro batch sizes, in samples, that are considered when none is requested."""

Recomputations = list[tuple[Recompute | None, tuple[str, ...]]]
"""Granularity and modules of selective recomputation."""


def fits(problem: PlanningProblem, layout: Layout) -> bool:
    """Whether the layout fits into the memory with some micro batch and recomputation."""
    return any(candidate.fits for candidate in variants(problem, layout))


def simplest_that_fits(problem: PlanningProblem) -> Candidate | None:
    """The simplest of all candidates that fit into the memory; None if there is none."""
    fitting = [c for each in valid_layouts(problem) for c in variants(problem, each) if c.fits]
    return min(fitting, key=lambda candidate: candidate.simplicity, default=None)


def variants(problem: PlanningProblem, layout: Layout) -> Iterator[Candidate]:
    """The layout with every micro batch size, interleaving and recomputation that may be chosen.

    Larger micro batches, interleaving and recomputation are tried only while they can help: the first two
    need more memory, so they do not fit where the plain layout does not, and need at least its recomputation.
    """
    known = problem.accelerator is not None
    sizes = [problem.micro_batch] if problem.micro_batch else MICRO_BATCHES if known else [1]
    options = _recomputations(problem)
    for micro_batch in sizes:
        if batch_errors(problem, layout, micro_batch) or _splits_too_much(problem, layout, micro_batch):
            return
        accumulation = [batch // (micro_batch * layout.dims.dp) for batch in problem.batches]
        while options:
            candidate = _candidate(problem, layout, micro_batch, *options[0], max(accumulation))
            yield candidate
            if candidate.fits:
                break
            options = options[1:]
        for each in interleavings(problem, layout, accumulation) if options else ():
            for recompute in options:
                candidate = _candidate(problem, each, micro_batch, *recompute, max(accumulation))
                yield candidate
                if candidate.fits:
                    break
        if not options:
            return


def _splits_too_much(problem: PlanningProblem, layout: Layout, micro_batch: int) -> bool:
    """Whether a CP of the planner's choice is not worth considering with a micro batch of its choice."""
    if problem.asked.context_parallel_size or problem.micro_batch:
        return False
    return layout.dims.cp > largest_cp(problem, micro_batch)


def _recomputations(problem: PlanningProblem) -> Recomputations:
    """Recomputation to consider: what is requested, else none, cheap modules, everything."""
    asked = problem.asked
    if asked.recompute_granularity or problem.accelerator is None or problem.is_function:
        return [(asked.recompute_granularity, tuple(asked.recompute_modules or ()))]
    options: Recomputations = [(None, ()), ("full", ())]
    if cheap := cheap_modules(problem.shape, problem.resolved):
        options.insert(1, ("selective", cheap))
    return options


def _candidate(
    problem: PlanningProblem,
    layout: Layout,
    micro_batch: int,
    recompute: Recompute | None,
    modules: tuple[str, ...],
    micro_batches: int,
) -> Candidate:
    """A candidate with its memory, not timed yet; `micro_batches` are those of a rank in one step."""
    asked, split = problem.asked, layout.split
    assert split is not None, "a valid layout has stages"
    workload = Workload(
        shape=problem.shape,
        dims=layout.dims,
        seq_length=problem.seq_length,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        stage_layers=split.layers,
        sequence_parallel=problem.sequence_parallel,
        distributed_optimizer=problem.distributed_optimizer,
        optimizer_instances=optimizer_instances(problem.resolved.megatron_args),
        fully_sharded=problem.fully_sharded,
        numerics=problem.numerics,
        recompute=Recomputation(
            recompute,
            asked.recompute_method or "uniform",
            asked.recompute_num_layers or 1,
            frozenset(modules),
        ),
        execution=problem.execution,
        adapters=problem.adapters,
        frozen=frozenset(problem.resolved.frozen),
    )
    memory = memory_per_gpu(workload, problem.capacity)
    return Candidate(layout, micro_batch, recompute, modules, workload, memory)


def with_time(problem: PlanningProblem, candidate: Candidate) -> Candidate:
    """The candidate with its expected speed, where that is known."""
    if problem.accelerator is None:
        return candidate
    return replace(candidate, expected=expected(candidate.workload, problem.accelerator))

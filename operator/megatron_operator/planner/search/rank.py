"""Ranks layouts: of those that fit comfortably the fastest, of equals a published or simple one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.parallel_dims import SPEC_FIELDS
from megatron_operator.api.status import MemoryPerGpu
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog.entry import PublishedSizes
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.checks.lint import overlaps_experts
from megatron_operator.planner.checks.precision import cheap_modules
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.memory import memory_per_gpu
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.uncertainty import mean_error, spread
from megatron_operator.planner.estimate.workload import Recomputation, Workload, optimizer_instances
from megatron_operator.planner.search.constraints import Layout, Recompute
from megatron_operator.planner.search.enumerate import (
    batch_errors,
    interleavings,
    largest_cp,
    refusal,
    valid_layouts,
)
from megatron_operator.planner.search.flag_layouts import with_flags
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.published_memory import keeps_published_memory
from megatron_operator.planner.search.smaller_states import with_which_it_fits
from megatron_operator.planner.search.suitable_batch import batch_error

EQUAL_SPEED = 0.02
"""Steps that are longer by at most this share count as equally fast, however precise the estimate is."""
NOT_COMPETITIVE = 1.25
"""Interleaved layouts are not timed where even without a bubble the step takes more than this times the
best."""
MEASURED = 1.15
"""Estimated memory, relative to the capacity, up to which a function's layout is believed to fit, and one
that the recipe sets completely is planned with a warning."""
TOLERANCE = 1.01
"""Estimated memory, relative to the capacity, up to which the most memory-efficient layout is planned with a
warning where none fits: the estimate is not precise enough to refuse it."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Micro batch sizes, in samples, that are considered when none is requested."""

Recomputations = list[tuple[Recompute | None, tuple[str, ...]]]
"""Granularity and modules of selective recomputation."""


@dataclass(slots=True)
class Ranking:
    """Layouts in order, best first, and those that were dropped because of their memory."""

    candidates: list[Candidate] = field(default_factory=list)
    too_large: list[Candidate] = field(default_factory=list)
    valid: int = 0
    """Number of layouts that satisfy all constraints."""
    error: float = EQUAL_SPEED
    """Share of a step by which the estimate of such runs is off on average: shorter steps count as equal."""

    @property
    def best(self) -> Candidate | None:
        """The first candidate, if there is one."""
        return self.candidates[0] if self.candidates else None


def rank(problem: PlanningProblem, found: Diagnostics) -> Ranking:
    """All layouts in order; without candidates, and with the errors in `found`, when none can run."""
    layouts = valid_layouts(problem)
    ranking = Ranking(valid=len(layouts))
    for layout in layouts:
        for candidate in _candidates(problem, layout):
            (ranking.candidates if candidate.fits else ranking.too_large).append(candidate)
    if not ranking.candidates and not ranking.too_large:
        unsuitable = batch_error(problem, layouts, _fits)
        found.extend([unsuitable] if unsuitable else refusal(problem))
        return ranking
    if not ranking.candidates:
        _handle_too_large(problem, ranking, found)
        ranking.candidates = with_flags(problem.resolved, ranking.candidates, found)
        return ranking
    supported = _supported(problem, ranking.candidates, found)
    ranking.candidates = with_flags(problem.resolved, supported, found)
    if not ranking.candidates:
        return ranking
    if problem.accelerator is None:
        ranking.candidates.sort(key=lambda candidate: candidate.simplicity)
        return ranking
    timed = _timed_all(problem, ranking.candidates)
    ranking.error = _preferred_first(problem, timed)
    ranking.candidates = timed
    return ranking


def _fits(problem: PlanningProblem, layout: Layout) -> bool:
    return any(candidate.fits for candidate in _candidates(problem, layout))


def _preferred_first(problem: PlanningProblem, timed: list[Candidate]) -> float:
    """Sorts candidates, the first the one to run; returns the error up to which sizes count as equally fast.

    The estimate is not more precise than the mean error of such runs: sizes within it of the fastest are
    equal. Those without full recomputation come first, then those of a published layout, then the simplest.
    Candidates of the same sizes share the error, because they differ in bubble, micro batch and recomputation
    only: among these it is `EQUAL_SPEED`.
    """
    assert problem.accelerator is not None, "without one nothing is timed"
    comfortable = [c for c in timed if c.is_comfortable] or timed
    fastest: dict[PublishedSizes, float] = {}
    for c in comfortable:
        fastest[c.sizes] = min(c.seconds, fastest.get(c.sizes, math.inf))
    error = max(EQUAL_SPEED, mean_error(spread(timed[0].workload, problem.accelerator)))
    longest = min(fastest.values()) * (1 + error)
    published = set(problem.resolved.published)

    def order(c: Candidate) -> tuple[bool, float, bool, bool, tuple[int, ...], float]:
        least = fastest.get(c.sizes, math.inf)
        full, unpublished = c.recompute == "full", c.sizes not in published
        if not c.is_comfortable or least > longest or c.seconds > least * (1 + EQUAL_SPEED):
            return not c.is_comfortable, c.seconds, full, unpublished, c.simplicity, c.seconds
        return False, 0.0, full, unpublished, c.simplicity, c.seconds

    timed.sort(key=order)
    return error


def _supported(problem: PlanningProblem, candidates: list[Candidate], found: Diagnostics) -> list[Candidate]:
    """The candidates with which Megatron accepts the recipe's flags; none, with the error in `found`."""
    args = problem.resolved.megatron_args
    if args.get("cuda-graph-impl") in ("local", "transformer_engine"):
        candidates = [c for c in candidates if c.recompute != "full"]
        if not candidates:
            found.error(
                "spec.megatronArgs.cuda-graph-impl",
                f"{args['cuda-graph-impl']} excludes full recomputation, without which no layout fits",
                "leave it out, or use more accelerators",
            )
    if candidates and args.get(EXPERT_OVERLAP):
        candidates = [c for c in candidates if overlaps_experts(c)]
        if not candidates:
            found.error(
                f"spec.megatronArgs.{EXPERT_OVERLAP}",
                "no layout that fits has EP above 1, virtual stages where there are stages, and no full "
                "recomputation",
                "leave it out, or use more accelerators",
            )
    return candidates


def _timed_all(problem: PlanningProblem, candidates: list[Candidate]) -> list[Candidate]:
    """All candidates with their times, except interleaved ones that cannot be competitive.

    Interleaving saves at most the bubble: where a layout without its bubble is still `NOT_COMPETITIVE` times
    slower than the best plain one, its interleavings do not matter.
    """
    plain = [_timed(problem, c) for c in candidates if c.dims.vp == 1]
    best = min((c.seconds for c in [c for c in plain if c.is_comfortable] or plain), default=math.inf)
    without_bubble: dict[tuple[object, ...], float] = {}
    for c in plain:
        assert c.expected is not None, "the candidate was timed"
        seconds = c.seconds * (1 - c.expected.bubble)
        without_bubble[_sizes(c)] = min(seconds, without_bubble.get(_sizes(c), math.inf))
    interleaved = [
        _timed(problem, c)
        for c in candidates
        if c.dims.vp > 1 and without_bubble.get(_sizes(c), 0.0) <= NOT_COMPETITIVE * best
    ]
    return plain + interleaved


def _sizes(candidate: Candidate) -> tuple[object, ...]:
    """What an interleaved candidate has in common with the plain one."""
    return replace(candidate.dims, vp=1), candidate.micro_batch


def _candidates(problem: PlanningProblem, layout: Layout) -> Iterator[Candidate]:
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


def _timed(problem: PlanningProblem, candidate: Candidate) -> Candidate:
    if problem.accelerator is None:
        return candidate
    return replace(candidate, expected=expected(candidate.workload, problem.accelerator))


def _handle_too_large(problem: PlanningProblem, ranking: Ranking, found: Diagnostics) -> None:
    """Nothing fits: accept what exceeds the memory by less than the estimate's error, and a fully requested
    layout if only its activations are too large, and not by far unless it was published or has run; else
    refuse."""
    smallest = min(ranking.too_large, key=lambda candidate: candidate.memory.total)
    memory, capacity = smallest.memory, smallest.memory.capacity or 0
    fully_requested = ranking.valid == 1
    states = memory.total - memory.activations
    published = problem.resolved.layout
    complete = problem.is_function and published is not None and not published.lacks_memory_settings
    if complete and published is not None and memory.total <= MEASURED * capacity:
        function = published.function
        found.note(
            f"memory is estimated at {memory.total / GIB:.1f} of {capacity / GIB:.1f} GiB: {function} is"
            " published with this layout, so the estimate may be too high"
        )
        ranking.candidates = [_timed(problem, smallest)]
        return
    known = _has_sufficed(problem, memory) or keeps_published_memory(problem.resolved)
    is_close = known or memory.total <= MEASURED * capacity
    if memory.total <= TOLERANCE * capacity or (fully_requested and states <= capacity and is_close):
        ranking.candidates = [_timed(problem, smallest)]
        return
    layout = smallest.dims.describe()
    needs = f"{memory.total / GIB:.1f} GiB of {problem.resolved.accelerator_type}'s {capacity / GIB:.1f} GiB"
    most_efficient = (
        "" if fully_requested else "even the most memory-efficient layout with it that the planner tries, "
    )
    if fewer := _activations_to_reduce(problem, f"{most_efficient}{layout} needs {needs}"):
        found.extend([fewer])
        return
    smaller = with_which_it_fits(problem, ranking.too_large)
    instead = f", or {smaller}" if smaller else ""
    pp = problem.asked.pipeline_model_parallel_size and not problem.fully_sharded
    if fully_requested and problem.world > 1 and (pp or problem.asked.tensor_model_parallel_size):
        name = "pipelineModelParallelSize" if pp else "tensorModelParallelSize"
        found.error(
            f"spec.parallelism.{name}",
            f"{layout} needs {needs} (states {states / GIB:.1f} GiB)",
            f"raise it, or leave parallelism to the planner{instead}",
        )
        return
    if too_restrictive := _size_to_relax(problem, layout, needs):
        found.extend([too_restrictive])
        return
    sufficient = _sufficient_count(problem)
    more = f"use {sufficient} or more" if sufficient else "use more accelerators, a smaller microBatchSize"
    if problem.fully_sharded:
        instead += ", or leave useMegatronFsdp out"
    count = "1 accelerator" if problem.world == 1 else f"{problem.world} accelerators"
    found.error(
        "spec.accelerator.count",
        f"on {count} even the most memory-efficient layout that the planner tries, {layout}, needs {needs}",
        f"{more}, or accelerators with more memory{instead}",
    )


def _has_sufficed(problem: PlanningProblem, memory: MemoryPerGpu) -> bool:
    """Whether the run has started with no less memory; on fewer accelerators only its states are larger."""
    before = problem.before
    if before is None or before.memory_per_gpu is None:
        return False
    is_shrunk, used = problem.world < before.world_size, before.memory_per_gpu
    return memory.activations <= used.activations and (is_shrunk or memory.total <= used.total)


def _activations_to_reduce(problem: PlanningProblem, needed: str) -> FieldError | None:
    """An error for the recipe's micro batch size, or its recomputation, without which a layout fits."""
    asked, is_set = problem.asked, problem.resolved.is_set_by_user
    batch, granularity = problem.micro_batch, asked.recompute_granularity
    sizes = divisors(batch)[-2::-1] if batch and is_set("training.microBatchSize") else []
    problems = [(f"set {size}", replace(problem, micro_batch=size)) for size in sizes]
    if granularity and is_set("parallelism.recomputeGranularity"):
        names = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
        planned = asked.model_copy(update=dict.fromkeys(names))
        fix = "leave recomputation to the planner"
        problems.append((fix, replace(problem, asked=planned)))
        problems += [
            (f"set {size} and {fix}", replace(problem, micro_batch=size, asked=planned)) for size in sizes
        ]
    for fix, changed in problems:
        if fitting := _simplest_that_fits(changed):
            with_it = f"{fitting.dims.describe()} needs {fitting.memory.total / GIB:.1f} GiB"
            name, value = "training.microBatchSize", str(batch)
            if changed.micro_batch == batch:
                name, value = "parallelism.recomputeGranularity", str(granularity)
            return FieldError(f"spec.{name}", f"{value}: {needed}", f"{fix}, with which {with_it}")
    return None


def _simplest_that_fits(problem: PlanningProblem) -> Candidate | None:
    fitting = [c for each in valid_layouts(problem) for c in _candidates(problem, each) if c.fits]
    return min(fitting, key=lambda candidate: candidate.simplicity, default=None)


def _size_to_relax(problem: PlanningProblem, layout: str, needs: str) -> FieldError | None:
    """An error for the one size of the recipe without which a layout fits, and the size it would have."""
    # With Megatron FSDP the planner itself sets PP and CP to 1.
    for dim in ("ep", "tp") if problem.fully_sharded else ("ep", "cp", "pp", "tp"):
        name = SPEC_FIELDS[dim]
        value = getattr(problem.asked, name)
        alias = ParallelismSpec.model_fields[name].alias
        if value is None or not problem.resolved.is_set_by_user(f"parallelism.{alias}"):
            continue
        relaxed = replace(problem, asked=problem.asked.model_copy(update={name: None}))
        if best := _simplest_that_fits(relaxed):
            return FieldError(
                f"spec.parallelism.{alias}",
                f"{value}: even the most memory-efficient layout with it that the planner tries, {layout}, "
                f"needs {needs}",
                f"set {getattr(best.dims, dim)}, or leave it to the planner",
            )
    return None


def _sufficient_count(problem: PlanningProblem) -> int | None:
    """The first larger count on which a layout fits, a power of two or so many nodes; none of ten counts.

    Multiples of an odd count divide experts and heads badly, and would be far too large.
    """
    per_node, most = problem.resolved.per_node, problem.world.bit_length() + 10
    counts = [1 << k for k in range((per_node - 1).bit_length())] + [per_node << k for k in range(most)]
    for count in [each for each in counts if each > problem.world][:10]:
        larger = problem.with_world_size(count)
        if any(_fits(larger, layout) for layout in valid_layouts(larger)):
            return count
    return None

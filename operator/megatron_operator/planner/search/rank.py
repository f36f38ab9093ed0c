"""Which layout is taken: of those that fit with room the fastest, and of equally fast ones the simplest."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from megatron_operator.api.errors import FieldError
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.planner.checks.lint import EXPERT_OVERLAP, overlaps_experts
from megatron_operator.planner.checks.precision import cheap_modules
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.memory import memory_per_gpu
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.workload import Recomputation, Workload
from megatron_operator.planner.search.constraints import Layout, Recompute
from megatron_operator.planner.search.enumerate import (
    batch_errors,
    data_parallel,
    interleavings,
    refusal,
    valid_layouts,
)
from megatron_operator.planner.search.problem import Candidate, PlanningProblem

EQUAL_SPEED = 0.02
"""Layouts whose step is longer by no more than this part count as equally fast: the formula is no finer."""
NOT_COMPETITIVE = 1.25
MICRO_BATCHES = (1, 2, 4, 8)
"""Micro batches that are weighed when none is asked for."""


@dataclass(slots=True)
class Ranking:
    """Layouts in order, best first, and those that were dropped for their memory."""

    candidates: list[Candidate] = field(default_factory=list)
    too_large: list[Candidate] = field(default_factory=list)
    valid: int = 0
    """Layouts that obey all rules."""

    @property
    def best(self) -> Candidate | None:
        return self.candidates[0] if self.candidates else None


def rank(problem: PlanningProblem, errors: list[FieldError]) -> Ranking:
    """All layouts in order; none, with the reasons added to `errors`, when nothing can be run."""
    layouts = valid_layouts(problem)
    ranking = Ranking(valid=len(layouts))
    for layout in layouts:
        for candidate in _candidates(problem, layout):
            (ranking.candidates if candidate.fits else ranking.too_large).append(candidate)
    if not ranking.candidates and not ranking.too_large:
        errors += refusal(problem)
        return ranking
    if not ranking.candidates:
        _handle_too_large(problem, ranking, errors)
        return ranking
    if problem.resolved.megatron_args.get(EXPERT_OVERLAP):
        ranking.candidates = [c for c in ranking.candidates if overlaps_experts(c)]
        if not ranking.candidates:
            errors.append(
                FieldError(
                    f"spec.megatronArgs.{EXPERT_OVERLAP}",
                    "no layout that fits has EP above 1, virtual stages where there are stages, and no full "
                    "recomputation",
                    "leave it out, or use more accelerators",
                )
            )
            return ranking
    if problem.accelerator is None:
        ranking.candidates.sort(key=lambda candidate: candidate.simplicity)
        return ranking
    timed = _timed_all(problem, ranking.candidates)
    fastest = min(_seconds(c) for c in [c for c in timed if c.is_comfortable] or timed)

    def order(c: Candidate) -> tuple[bool, float, tuple[bool, int, int, int, int, int], float]:
        seconds = _seconds(c)
        equally_fast = seconds <= fastest * (1 + EQUAL_SPEED)
        return not c.is_comfortable, 0.0 if equally_fast else seconds, c.simplicity, seconds

    timed.sort(key=order)
    ranking.candidates = timed
    return ranking


def _timed_all(problem: PlanningProblem, candidates: list[Candidate]) -> list[Candidate]:
    """All candidates with their times, less interleaved ones that are out of the running.

    Interleaving saves the bubble at most: where even without it a layout takes a quarter longer than the best
    plain one, how its chunks lie makes no difference to the ranking.
    """
    plain = [_timed(problem, c) for c in candidates if not _virtual(c)]
    least = min((_seconds(c) for c in [c for c in plain if c.is_comfortable] or plain), default=math.inf)
    without_bubble: dict[tuple[object, ...], float] = {}
    for c in plain:
        assert c.expected is not None, "timed"
        seconds = _seconds(c) * (1 - c.expected.bubble)
        without_bubble[_sizes(c)] = min(seconds, without_bubble.get(_sizes(c), math.inf))
    interleaved = [
        _timed(problem, c)
        for c in candidates
        if _virtual(c) and without_bubble.get(_sizes(c), 0.0) <= NOT_COMPETITIVE * least
    ]
    return plain + interleaved


def _virtual(candidate: Candidate) -> bool:
    split = candidate.layout.split
    return split is not None and (split.virtual or 1) > 1


def _sizes(candidate: Candidate) -> tuple[object, ...]:
    layout = candidate.layout
    return layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, candidate.micro_batch


def _seconds(candidate: Candidate) -> float:
    assert candidate.expected is not None, "timed"
    return candidate.expected.step_seconds


def _candidates(problem: PlanningProblem, layout: Layout) -> Iterator[Candidate]:
    """The layout with every micro batch, interleaving and recomputation that may be chosen.

    Larger micro batches, interleaving and recomputation are tried only while they can help: the first two
    need more memory, so where the plain layout is too large they are too, and they have to recompute at least
    what it has to.
    """
    dp = data_parallel(problem, layout)
    known = problem.accelerator is not None
    sizes = [problem.micro_batch] if problem.micro_batch else MICRO_BATCHES if known else [1]
    options = _recomputations(problem)
    for micro_batch in sizes:
        if batch_errors(problem, layout, micro_batch):
            return
        accumulation = [batch // (micro_batch * dp) for batch in problem.batches]
        plain, *interleaved = interleavings(problem, layout, accumulation)
        while options:
            candidate = _candidate(problem, plain, dp, micro_batch, *options[0], max(accumulation))
            yield candidate
            if candidate.fits:
                break
            options = options[1:]
        for each in interleaved if options else ():
            for recompute in options:
                candidate = _candidate(problem, each, dp, micro_batch, *recompute, max(accumulation))
                yield candidate
                if candidate.fits:
                    break
        if not options:
            return


def _recomputations(problem: PlanningProblem) -> list[tuple[Recompute | None, tuple[str, ...]]]:
    """What may be done again: what is asked for, else nothing, cheap modules, everything."""
    asked = problem.asked
    if asked.recompute_granularity or problem.accelerator is None:
        return [(asked.recompute_granularity, tuple(asked.recompute_modules or ()))]
    options: list[tuple[Recompute | None, tuple[str, ...]]] = [(None, ()), ("full", ())]
    if cheap := cheap_modules(problem.shape, problem.resolved):
        options.insert(1, ("selective", cheap))
    return options


def _workload(
    problem: PlanningProblem,
    layout: Layout,
    dp: int,
    micro_batch: int,
    recompute: Recompute | None,
    modules: tuple[str, ...],
    micro_batches: int,
) -> Workload:
    asked, split = problem.asked, layout.split
    assert split is not None, "a valid layout has stages"
    return Workload(
        shape=problem.shape,
        seq_length=problem.seq_length,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        tp=layout.tp,
        cp=layout.cp,
        dp=dp,
        stage_layers=split.layers,
        virtual=split.virtual or 1,
        ep=layout.ep,
        etp=layout.etp,
        expert_dp=problem.world // (layout.etp * layout.ep * layout.pp),
        sequence_parallel=problem.sequence_parallel,
        distributed_optimizer=problem.distributed_optimizer,
        numerics=problem.numerics,
        recompute=Recomputation(
            recompute,
            asked.recompute_method or "uniform",
            asked.recompute_num_layers or 1,
            frozenset(modules),
        ),
        execution=problem.execution,
    )


def _candidate(
    problem: PlanningProblem,
    layout: Layout,
    dp: int,
    micro_batch: int,
    recompute: Recompute | None,
    modules: tuple[str, ...],
    micro_batches: int,
) -> Candidate:
    workload = _workload(problem, layout, dp, micro_batch, recompute, modules, micro_batches)
    memory = memory_per_gpu(workload, problem.capacity)
    return Candidate(layout, dp, workload.expert_dp, micro_batch, recompute, modules, workload, memory)


def _timed(problem: PlanningProblem, candidate: Candidate) -> Candidate:
    if problem.accelerator is None:
        return candidate
    return replace(candidate, expected=expected(candidate.workload, problem.accelerator))


def _handle_too_large(problem: PlanningProblem, ranking: Ranking, errors: list[FieldError]) -> None:
    """Nothing fits: take a layout that was asked for whole if only activations are too large, else refuse."""
    smallest = min(ranking.too_large, key=lambda candidate: candidate.memory.total)
    memory, capacity = smallest.memory, smallest.memory.capacity or 0
    asked_whole = ranking.valid == 1
    states = memory.total - memory.activations
    if asked_whole and states <= capacity:
        ranking.candidates = [_timed(problem, smallest)]
        return
    needs = f"{memory.total / GIB:.1f} GiB of {problem.resolved.accelerator_type}'s {capacity / GIB:.1f} GiB"
    if asked_whole:
        pp = problem.asked.pipeline_model_parallel_size
        name = "pipelineModelParallelSize" if pp else "tensorModelParallelSize"
        errors.append(
            FieldError(
                f"spec.parallelism.{name}",
                f"{smallest.words} needs {needs} (states {states / GIB:.1f} GiB)",
                "raise it, or leave parallelism to the planner",
            )
        )
        return
    if blamed := _size_to_relax(problem, smallest.words, needs):
        errors.append(blamed)
        return
    enough = _sufficient_count(problem)
    more = f"use {enough} or more" if enough else "use more accelerators, a smaller microBatchSize"
    errors.append(
        FieldError(
            "spec.accelerator.count",
            f"on {problem.world} accelerators even the leanest layout, {smallest.words}, needs {needs}",
            f"{more}, or accelerators with more memory",
        )
    )


_SHORT = {
    "expert_model_parallel_size": "ep",
    "context_parallel_size": "cp",
    "pipeline_model_parallel_size": "pp",
    "tensor_model_parallel_size": "tp",
}


def _size_to_relax(problem: PlanningProblem, words: str, needs: str) -> FieldError | None:
    """The one size of the recipe without which some layout fits, and the size that it has there."""
    for name, short in _SHORT.items():
        value = getattr(problem.asked, name)
        alias = ParallelismSpec.model_fields[name].alias
        if value is None or problem.resolved.origins.get(f"parallelism.{alias}", "recipe") != "recipe":
            continue
        free = replace(problem, asked=problem.asked.model_copy(update={name: None}))
        fitting = [c for layout in valid_layouts(free) for c in _candidates(free, layout) if c.fits]
        if fitting:
            best = min(fitting, key=lambda c: c.simplicity)
            size = getattr(best.layout, short)
            return FieldError(
                f"spec.parallelism.{alias}",
                f"{value}: even the leanest layout with it, {words}, needs {needs}",
                f"set {size}, or leave it to the planner",
            )
    return None


def _sufficient_count(problem: PlanningProblem) -> int | None:
    """The first doubling of the count on which some layout fits; none below a thousandfold."""
    for doublings in range(1, 11):
        larger = problem.on(problem.world * (1 << doublings))
        if any(c.fits for layout in valid_layouts(larger) for c in _candidates(larger, layout)):
            return larger.world
    return None

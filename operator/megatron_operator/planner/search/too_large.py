"""Layouts that exceed the memory: those that are planned nevertheless, and why the others are refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.parallel_dims import SPEC_FIELDS
from megatron_operator.api.status import MemoryPerGpu
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.search.enumerate import valid_layouts
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.published_memory import keeps_published_memory
from megatron_operator.planner.search.smaller_states import with_which_it_fits
from megatron_operator.planner.search.variants import fits, simplest_that_fits, variants, with_time

MEASURED = 1.15
"""Estimated memory, relative to the capacity, up to which a function's layout is believed to fit, and one
that the recipe sets completely is planned with a warning."""
TOLERANCE = 1.01
"""Estimated memory, relative to the capacity, up to which the most memory-efficient layout is planned with a
warning where none fits: the estimate is not precise enough to refuse it."""

_STAGES: Final = (
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)


def believed_to_fit(
    problem: PlanningProblem, too_large: Sequence[Candidate], *, is_only: bool, found: Diagnostics
) -> list[Candidate]:
    """The smallest candidate where it is planned nevertheless; none, with the error in `found`, else.

    Nothing fits. What exceeds the memory by less than the estimate's error is believed, and the only layout
    if just its activations are too large, where it was published or has run, or the recipe sets it and they
    are not so by far. `is_only`: one layout alone satisfies the constraints.
    """
    smallest = _least(too_large)
    memory, capacity = smallest.memory, smallest.memory.capacity or 0
    published = problem.resolved.layout
    complete = problem.is_function and published is not None and not published.lacks_memory_settings
    if complete and published is not None and memory.total <= MEASURED * capacity:
        function = published.function
        found.note(
            f"memory is estimated at {memory.total / GIB:.1f} of {capacity / GIB:.1f} GiB: {function} is"
            " published with this layout, so the estimate may be too high"
        )
        return [with_time(problem, smallest)]
    is_close = memory.total <= MEASURED * capacity and _is_requested(problem)
    known = _has_sufficed(problem, memory) or keeps_published_memory(problem.resolved)
    only_activations = is_only and memory.total - memory.activations <= capacity
    if memory.total <= TOLERANCE * capacity or (only_activations and (known or is_close)):
        return [with_time(problem, smallest)]
    found.extend([_refusal(problem, too_large, is_only=is_only)])
    return []


def _least(candidates: Sequence[Candidate]) -> Candidate:
    return min(candidates, key=lambda candidate: candidate.memory.total)


def _sets_sizes(problem: PlanningProblem) -> bool:
    """Whether TP and PP are set, by whatever; one of them may be possible alone for lack of accelerators."""
    asked = problem.asked
    return None not in (asked.tensor_model_parallel_size, asked.pipeline_model_parallel_size)


def _sets_sizes_itself(problem: PlanningProblem) -> bool:
    is_set = problem.resolved.is_set_by_user
    return is_set("parallelism.tensorModelParallelSize") and is_set("parallelism.pipelineModelParallelSize")


def _is_requested(problem: PlanningProblem) -> bool:
    """Whether TP and PP are those of the recipe, of a function of Bridge, or of a run that started."""
    of_function = problem.is_function or (
        problem.resolved.engine == "bridge" and problem.resolved.layout is not None
    )
    own = _sets_sizes_itself(problem) or of_function or problem.before is not None
    return own and _sets_sizes(problem)


def _refusal(problem: PlanningProblem, too_large: Sequence[Candidate], *, is_only: bool) -> FieldError:
    """The error of the setting to change, with one that fits: of the number of accelerators if none else."""
    smallest = _least(too_large)
    layout, needs = smallest.dims.describe(), _needs(problem, smallest)
    most_efficient = (
        "" if is_only else "even the most memory-efficient layout with it that the planner tries, "
    )
    if fewer := _activations_to_reduce(problem, f"{most_efficient}{layout} needs {needs}"):
        return fewer
    if not is_only or problem.world == 1 or not _sets_sizes(problem):
        return _size_to_relax(problem, layout, needs) or _count_error(problem, too_large)
    free = _with_open_sizes(problem)
    # A layout of the catalog is kept by Megatron-Bridge, and else planned again for this error.
    of_catalog = problem.resolved.layout is not None and not _sets_sizes_itself(problem)
    if not of_catalog and simplest_that_fits(free) is None:
        others = [candidate for each in valid_layouts(free) for candidate in variants(free, each)]
        return _count_error(free, others or too_large, requested=problem)
    name = "tensorModelParallelSize" if problem.fully_sharded else "pipelineModelParallelSize"
    states = smallest.memory.total - smallest.memory.activations
    return FieldError(
        f"spec.parallelism.{name}",
        f"{layout} needs {needs} (states {states / GIB:.1f} GiB)",
        f"raise it, or leave parallelism to the planner{_instead(problem, too_large)}",
    )


def _needs(problem: PlanningProblem, candidate: Candidate) -> str:
    memory, name = candidate.memory, problem.resolved.accelerator_type
    return f"{memory.total / GIB:.1f} GiB of {name}'s {(memory.capacity or 0) / GIB:.1f} GiB"


def _instead(problem: PlanningProblem, too_large: Sequence[Candidate]) -> str:
    smaller = with_which_it_fits(problem, too_large)
    return f", or {smaller}" if smaller else ""


def _with_open_sizes(problem: PlanningProblem) -> PlanningProblem:
    """The problem without the sizes that are set; those that its engine or Megatron FSDP fixes stay."""
    fixed = {"pp", "cp", "vp"} if problem.fully_sharded else set()
    if problem.resolved.engine == "bridge":
        fixed.add("cp")
    names = [*(name for dim, name in SPEC_FIELDS.items() if dim not in fixed), *_STAGES]
    own = problem.resolved.is_set_by_user("training.microBatchSize")
    return replace(
        problem,
        asked=problem.asked.model_copy(update=dict.fromkeys(names)),
        micro_batch=problem.micro_batch if own else None,
        refine=True,
    )


def _count_error(
    problem: PlanningProblem, too_large: Sequence[Candidate], requested: PlanningProblem | None = None
) -> FieldError:
    """The error of a number of accelerators on which nothing fits, also with other sizes than `requested`."""
    smallest, sufficient = _least(too_large), _sufficient_count(problem)
    more = f"use {sufficient} or more" if sufficient else "use more accelerators, a smaller microBatchSize"
    if sufficient and requested is not None and not _fits_on(requested, sufficient):
        more += " and leave parallelism to the planner"
    instead = _instead(problem, too_large)
    if problem.fully_sharded:
        instead += ", or leave useMegatronFsdp out"
    count = "1 accelerator" if problem.world == 1 else f"{problem.world} accelerators"
    layout = smallest.dims.describe()
    return FieldError(
        "spec.accelerator.count",
        f"on {count} even the most memory-efficient layout that the planner tries, {layout}, needs"
        f" {_needs(problem, smallest)}",
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
        if fitting := simplest_that_fits(changed):
            with_it = f"{fitting.dims.describe()} needs {fitting.memory.total / GIB:.1f} GiB"
            name, value = "training.microBatchSize", str(batch)
            if changed.micro_batch == batch:
                name, value = "parallelism.recomputeGranularity", str(granularity)
            return FieldError(f"spec.{name}", f"{value}: {needed}", f"{fix}, with which {with_it}")
    return None


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
        if best := simplest_that_fits(relaxed):
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
        if _fits_on(problem, count):
            return count
    return None


def _fits_on(problem: PlanningProblem, count: int) -> bool:
    larger = problem.with_world_size(count)
    return any(fits(larger, layout) for layout in valid_layouts(larger))

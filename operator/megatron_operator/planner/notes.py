"""Notes of a plan (`status.plan.notes`): the reason for each choice."""

from collections.abc import Iterable
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.status import MemoryPerGpu, Plan
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.search.problem import COMFORTABLE_SHARE, Candidate, PlanningProblem
from megatron_operator.planner.search.rank import Ranking

_MEMORY: Final = "memory may not suffice: "
_TIGHT: Final = "memory is tight: "
_REJECTED: Final = "published layout used, although the planner rejects it: "
"""How the notes begin that are warnings."""


def planning_notes(problem: PlanningProblem, ranking: Ranking, chosen: Candidate) -> list[str]:
    """The reason for every choice that the recipe left open."""
    return [
        *_sizes(problem, ranking, chosen),
        *_experts(problem, chosen),
        *_stages(problem, chosen),
        *_batch(problem, chosen),
        *_memory(problem, chosen),
    ]


def _sizes(problem: PlanningProblem, ranking: Ranking, chosen: Candidate) -> list[str]:
    asked = problem.asked
    free = [
        name
        for name, value in (
            ("TP", asked.tensor_model_parallel_size),
            ("PP", asked.pipeline_model_parallel_size),
            ("CP", asked.context_parallel_size),
            ("EP", asked.expert_model_parallel_size if problem.shape.experts else 1),
        )
        if value is None
    ]
    if not free or ranking.valid == 1:
        return []
    planned = f"{chosen.dims.describe()} ({', '.join(free)} planned)"
    if problem.accelerator is None:
        return [f"{planned}: the simplest of {ranking.valid} layouts; their speed and memory are unknown"]
    valid = f"of {ranking.valid} valid layouts, as estimated"
    others = [c for c in ranking.candidates[1:] if c.sizes != chosen.sizes]
    if not others or others[0].expected is None or chosen.expected is None:
        best = "the fastest" if chosen.fits else "that with the least memory"
        return [f"{planned}: {best} {valid}"]
    next_best = others[0].dims.describe()
    share = chosen.expected.step_seconds / others[0].expected.step_seconds
    if share * (1 + ranking.error) <= 1:
        return [f"{planned}: the fastest {valid}; {next_best} would be {1 - share:.0%} slower"]
    why = "published for another count" if chosen.sizes in problem.resolved.published else "simpler"
    return [f"{planned}: within {ranking.error:.0%}, the estimate's error, of the fastest {valid}; {why}"]


def _experts(problem: PlanningProblem, chosen: Candidate) -> list[str]:
    tp = chosen.dims.tp
    if problem.shape.experts and problem.asked.expert_tensor_parallel_size is None and tp > 1:
        return [f"expertTensorParallelSize 1: Megatron's default, TP {tp}, would split each expert"]
    return []


def _stages(problem: PlanningProblem, chosen: Candidate) -> list[str]:
    asked, split, notes = problem.asked, chosen.layout.split, []
    if split is None or split.layout is not None:
        return []
    if split.virtual and not asked.num_virtual_stages_per_pipeline_rank:
        bubble = f" ({chosen.expected.bubble:.0%} of a step)" if chosen.expected else ""
        notes.append(
            f"numVirtualStagesPerPipelineRank {split.virtual}: interleaving shortens the bubble{bubble}"
        )
    if not split.even:
        notes.append(f"layers of the stages: {_run_lengths(split.layers)}")
    return notes


def _run_lengths(layers: tuple[int, ...]) -> str:
    """`7, 8 x 14, 7`."""
    runs: list[list[int]] = []
    for count in layers:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ", ".join(f"{count} x {times}" if times > 1 else f"{count}" for count, times in runs)


def _batch(problem: PlanningProblem, chosen: Candidate) -> list[str]:
    if problem.micro_batch is not None:
        return []
    chosen_for = "the fastest that fits" if chosen.fits else "needs the least memory"
    reason = chosen_for if problem.accelerator else "none was given"
    return [f"microBatchSize {chosen.micro_batch}: {reason}"]


def _memory(problem: PlanningProblem, chosen: Candidate) -> list[str]:
    notes = []
    if problem.asked.recompute_granularity is None and chosen.recompute == "full":
        notes.append("recomputeGranularity full: activations do not fit otherwise")
    if problem.asked.recompute_granularity is None and chosen.recompute == "selective":
        notes.append(f"recomputeModules {', '.join(chosen.modules)}: activations do not fit otherwise")
    published = chosen.sizes in problem.resolved.published
    if chosen.fits and not (chosen.is_comfortable or published):
        notes.append(_tight_memory(chosen.memory))
    return notes + memory_warnings(chosen.memory)


def _tight_memory(memory: MemoryPerGpu) -> str:
    share = f"{memory.total / GIB:.1f} of {(memory.capacity or 0) / GIB:.1f}"
    low = 1 - COMFORTABLE_SHARE
    return f"memory is tight: {share} GiB estimated, and an estimate may be {low:.0%} too low"


def memory_warnings(memory: MemoryPerGpu | None) -> list[str]:
    """A warning where the layout of the plan may not fit."""
    if memory is None or memory.capacity is None or memory.total <= memory.capacity:
        return []
    total, capacity = memory.total / GIB, memory.capacity / GIB
    return [f"memory may not suffice: {total:.1f} GiB estimated, {capacity:.1f} GiB available"]


def with_memory_warnings(notes: list[str], memory: MemoryPerGpu | None) -> list[str]:
    """The notes of a plan with its own estimate of the memory in place of what the search has noted of it."""
    kept = [note for note in notes if not note.startswith((_MEMORY, _TIGHT))]
    capacity = memory.capacity if memory is not None else None
    tight = any(note.startswith(_TIGHT) for note in notes)
    if memory is not None and capacity and tight and COMFORTABLE_SHARE * capacity < memory.total <= capacity:
        kept.append(_tight_memory(memory))
    return kept + memory_warnings(memory)


def rejected_layout_warning(error: FieldError) -> str:
    """That a published layout is used which the planner rejects."""
    if lacks_memory([error.message]):
        return f"memory may not suffice: the published layout is used, but as estimated {error.message}"
    return f"published layout used, although the planner rejects it: {error}"


def layout_warnings(plan: Plan) -> list[str]:
    """The notes of a plan after which its layout may not run."""
    return [note for note in plan.notes if note.startswith((_MEMORY, _TIGHT, _REJECTED))]


def lacks_memory(reasons: Iterable[str]) -> bool:
    """Whether an error of a recipe is that its layout needs more memory than there is."""
    return any("GiB" in reason for reason in reasons)


def beyond_memory(plan: Plan | None) -> str | None:
    """Why the layout of a plan is not expected to fit; None if it is. No plan: it was refused."""
    if plan is None:
        return "is refused"
    memory = plan.memory_per_gpu
    if memory is None and any(note.startswith(_MEMORY) for note in plan.notes):
        return "needs more memory than there is, as estimated"
    if memory is None or memory.capacity is None or memory.total <= memory.capacity:
        return None
    return f"needs {memory.total / GIB:.0f} of {memory.capacity / GIB:.0f} GiB, as estimated"

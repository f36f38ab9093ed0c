"""Settings with which a layout that is too large would fit.

They change the numerics, so the planner names them and never sets them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.memory import memory_per_gpu
from megatron_operator.planner.estimate.workload import Numerics, numerics
from megatron_operator.planner.search.problem import Candidate, PlanningProblem

BF16_GRADIENTS: Final[dict[str, Any]] = {"megatronArgs.grad-reduce-in-bf16": True}
"""Settings by their paths below `spec`: gradients are accumulated and reduced in BF16."""
BF16_MOMENTS: Final[dict[str, Any]] = {
    "training.usePrecisionAwareOptimizer": True,
    "megatronArgs.exp-avg-dtype": "bf16",
    "megatronArgs.exp-avg-sq-dtype": "bf16",
}
"""Settings of the precision-aware optimizer with both moments of Adam in BF16."""


def with_which_it_fits(problem: PlanningProblem, too_large: Iterable[Candidate]) -> str | None:
    """The first of BF16 gradients, BF16 moments and both with which a layout fits, with what it then needs.

    None where none helps, or where the recipe itself sets them.
    """
    candidates = sorted(too_large, key=lambda candidate: candidate.simplicity)
    for settings, smaller in _options(problem):
        for each in candidates:
            workload = replace(each.workload, numerics=smaller)
            memory = memory_per_gpu(workload, problem.capacity)
            if memory.capacity is not None and memory.total <= memory.capacity:
                named = ", ".join(f"{path}: {_text(value)}" for path, value in settings.items())
                return f"{named}, with which {each.dims.describe()} needs {memory.total / GIB:.1f} GiB"
    return None


def _options(problem: PlanningProblem) -> Iterator[tuple[dict[str, Any], Numerics]]:
    """Settings that the run may still be given, the one that changes least first, with its numerics."""
    resolved = problem.resolved
    adam = resolved.training.optimizer in (None, "adam")
    if not resolved.training.bf16 or resolved.engine == "bridge" or problem.fully_sharded:
        return
    options = [BF16_GRADIENTS]
    if adam and problem.distributed_optimizer:
        options += [BF16_MOMENTS, BF16_GRADIENTS | BF16_MOMENTS]
    for settings in options:
        if any(resolved.origins.get(path) == "recipe" for path in settings):
            continue
        args = {path.split(".", 1)[1]: v for path, v in settings.items() if path.startswith("megatronArgs.")}
        training = resolved.training
        if "training.usePrecisionAwareOptimizer" in settings:
            training = training.model_copy(update={"use_precision_aware_optimizer": True})
        smaller = numerics(training, resolved.megatron_args | args)
        if smaller != problem.numerics:
            yield settings, smaller


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The error of a global batch size that no layout divides, with the nearest sizes that one does."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from megatron_operator.api.errors import FieldError, UnsuitableBatch
from megatron_operator.planner.search.constraints import Layout
from megatron_operator.planner.search.problem import PlanningProblem

Fits = Callable[[PlanningProblem, Layout], bool]
"""Whether a layout fits into the memory with the batch of a problem."""


def batch_error(problem: PlanningProblem, layouts: Iterable[Layout], fits: Fits) -> FieldError | None:
    """An error that names the batches next to the requested one that some of the `layouts` divides and fits.

    None where the recipe leaves no layout open, the batch varies, or a layout divides it.
    """
    asked = problem.asked
    sizes = (
        asked.tensor_model_parallel_size,
        asked.pipeline_model_parallel_size,
        asked.context_parallel_size,
    )
    if None not in sizes or len(problem.batches) > 1 or asked.num_virtual_stages_per_pipeline_rank:
        return None
    [batch], micro_batch = problem.batches, problem.micro_batch or 1
    units = [(layout, micro_batch * layout.dims.dp) for layout in layouts]
    if not units or any(batch % unit == 0 for _, unit in units):
        return None
    below = [(batch // unit * unit, each) for each, unit in units if unit <= batch]
    above = [(batch // unit * unit + unit, each) for each, unit in units]
    found: list[tuple[int, Layout]] = []
    for batches, sign in ((below, -1), (above, 1)):
        ordered = sorted(batches, key=lambda each: (sign * each[0], -each[1].dims.dp))
        fitting = (each for each in ordered if fits(replace(problem, batches=[each[0]]), each[1]))
        # Where none fits, the memory is the next thing to refuse.
        found += [each] if (each := next(fitting, None) or next(iter(ordered), None)) else []
    return UnsuitableBatch(
        "spec.training.globalBatchSize",
        f"{batch} is not divisible by microBatchSize {micro_batch} x DP of any layout on {problem.world}"
        " accelerators",
        f"set {' or '.join(f'{size} (DP {layout.dims.dp})' for size, layout in found)}",
        tuple(size for size, _ in found),
    )

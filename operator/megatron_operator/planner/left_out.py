"""What it costs, by the planner's model, that some of a function's settings are left out."""

from dataclasses import replace

from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.workload import execution
from megatron_operator.planner.search.problem import Candidate, PlanningProblem


def cost_note(problem: PlanningProblem, chosen: Candidate) -> str | None:
    """How much longer a step is than with what is left out; none where that is nothing, or not timed."""
    layout = problem.resolved.layout
    if layout is None or not layout.left_out_args or not problem.is_function:
        return None
    if problem.accelerator is None or chosen.expected is None:
        return None
    whole = execution(
        problem.resolved.training,
        problem.asked,
        problem.resolved.megatron_args | layout.left_out_args,
        dispatcher="flex" if "moe-flex-dispatcher-backend" in layout.left_out_args else None,
        gradient_overlap=problem.execution.gradient_overlap,
        parameter_overlap=problem.execution.parameter_overlap,
    )
    faster = expected(replace(chosen.workload, execution=whole), problem.accelerator)
    share = chosen.seconds / faster.step_seconds - 1
    return f"what is left out of {layout.function} is predicted to make a step {share:.1%} longer"

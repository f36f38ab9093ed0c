"""What it costs, by the planner's model, that some of a function's settings are left out.

The settings are taken away one after the other, the last first, because one may need another: each cost is
relative to what the ones before have left.
"""

from dataclasses import dataclass, replace

from megatron_operator.api.parallel_dims import SPEC_FIELDS, ParallelDims
from megatron_operator.api.status import Expected, Plan
from megatron_operator.catalog.entry import BACKEND, LeftOut, MegatronArgs, PublishedLayout
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.hardware import Accelerator
from megatron_operator.planner.estimate.step_time import expected
from megatron_operator.planner.estimate.workload import Recomputation, Workload, execution
from megatron_operator.planner.search.problem import Candidate, PlanningProblem


@dataclass(frozen=True, slots=True)
class Cost:
    """A setting of a function that the plan lacks."""

    setting: str
    reason: str
    expected: Expected | None
    """The speed without it, and without those before it; none where the planner cannot predict it."""


@dataclass(frozen=True, slots=True)
class FunctionSpeed:
    """The predicted speed of a function with all its settings, and what each missing one costs."""

    function: str
    expected: Expected | None
    costs: list[Cost]


def function_speed(resolved: ResolvedRecipe, plan: Plan) -> FunctionSpeed | None:
    """The recipe's function; its speed is unknown where the run is not on its accelerators.

    None without a function, or where Megatron-Bridge itself runs it. Raises InvalidRecipeError when the model
    is incomplete.
    """
    layout = resolved.layout or resolved.function
    if layout is None or layout.function is None or resolved.engine == "bridge":
        return None
    left_out = layout.left_out or []
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile, resolved.per_node)
    as_published = _as_published(resolved, layout, plan) if resolved.layout else None
    if accelerator is None or as_published is None:
        unknown = [Cost(each.setting, each.reason, None) for each in reversed(left_out)]
        return FunctionSpeed(layout.function, None, unknown)
    speeds = _speeds(resolved, as_published, left_out, accelerator)
    costs = [
        Cost(each.setting, each.reason, speed if each.args else None)
        for each, speed in zip(reversed(left_out), speeds[1:], strict=True)
    ]
    if not _has_layout(plan, layout):
        costs = [*(cost for cost in costs if cost.expected), _other_layout(layout, plan, left_out)]
    return FunctionSpeed(layout.function, speeds[0], costs)


def cost_note(problem: PlanningProblem, chosen: Candidate) -> str | None:
    """How much longer a step is than with what is left out; none where that is nothing, or not timed."""
    layout = problem.resolved.layout
    if layout is None or not problem.is_function or problem.accelerator is None or chosen.expected is None:
        return None
    left_out = [each for each in layout.left_out or [] if each.args]
    if not left_out:
        return None
    whole, *_ = _speeds(problem.resolved, chosen.workload, left_out, problem.accelerator)
    share = chosen.seconds / whole.step_seconds - 1
    return f"what is left out of {layout.function} is predicted to make a step {share:.1%} longer"


def _speeds(
    resolved: ResolvedRecipe, workload: Workload, left_out: list[LeftOut], on: Accelerator
) -> list[Expected]:
    """The speed with everything that is left out, and after each of it is taken away, the last first."""
    found = []
    for kept in range(len(left_out), -1, -1):
        args: MegatronArgs = {}
        for each in left_out[:kept]:
            args |= each.args or {}
        run = execution(
            resolved.training,
            resolved.parallelism,
            resolved.megatron_args | args,
            dispatcher="flex" if BACKEND in args else resolved.model.moe_token_dispatcher_type,
            gradient_overlap=workload.execution.gradient_overlap,
            parameter_overlap=workload.execution.parameter_overlap,
        )
        found.append(expected(replace(workload, execution=run), on))
    return found


def _has_layout(plan: Plan, layout: PublishedLayout) -> bool:
    """Whether the plan has the sizes of the function; virtual stages may follow from its layout string."""
    asked = ParallelDims.of_spec(layout.parallelism, layout.count)
    planned = ParallelDims.of_plan(plan)
    return replace(asked, vp=1) == replace(planned, vp=1)


def _as_published(resolved: ResolvedRecipe, layout: PublishedLayout, plan: Plan) -> Workload | None:
    """The function's workload, whether it fits or not; none for another layout that has several stages."""
    workload = Workload.of(resolved, plan)
    if _has_layout(plan, layout):
        return workload
    asked = layout.parallelism
    dims = ParallelDims.of_spec(asked, layout.count)
    micro_batch = layout.training.micro_batch_size or plan.micro_batch_size
    micro_batches = plan.global_batch_size // max(1, micro_batch * dims.dp)
    if dims.pp > 1 or not micro_batches:
        return None
    return replace(
        workload,
        dims=dims,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        stage_layers=(sum(workload.stage_layers),),
        recompute=Recomputation(
            asked.recompute_granularity,
            asked.recompute_method or "uniform",
            asked.recompute_num_layers or 1,
            frozenset(asked.recompute_modules or ()),
        ),
    )


def _other_layout(layout: PublishedLayout, plan: Plan, left_out: list[LeftOut]) -> Cost:
    """The planned layout instead of the function's, and what of the function would make the latter fit."""
    dims = [dim for dim in SPEC_FIELDS if dim != "etp"]
    asked = ParallelDims.of_spec(layout.parallelism, layout.count).describe(dims)
    missing = [each.setting for each in left_out if each.less_memory]
    planned = ParallelDims.of_plan(plan).describe(dims)
    if missing:
        reason = f"so {asked} does not fit: planned with {planned}"
        return Cost(" and ".join(missing), reason, plan.expected)
    return Cost(f"the layout {asked}", f"which the planner rejects: planned with {planned}", plan.expected)

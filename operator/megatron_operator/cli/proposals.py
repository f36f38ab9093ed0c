"""Settings that `megatron plan` proposes, each planned with, so that it is accepted and its gain is real."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic.alias_generators import to_camel

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Expected
from megatron_operator.cli.inputs import RecipeOptions, set_field
from megatron_operator.cli.tables import print_item

if TYPE_CHECKING:
    from megatron_operator.planner import Alternative, PlannedRun
    from megatron_operator.planner.switches import Switch


_SIZES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_NEAR: Final = 1 / 8
"""Share of a global batch by which another one may differ to be proposed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings, and the predicted speed of the recipe with them."""

    switch: "Switch"
    expected: Expected
    gain: float
    """In tokens per second, as a share."""
    layout: ParallelDims | None
    """The layout that it allows or favours; None for that of the plan."""
    together: bool = False
    """Whether it combines others of the list."""


def proposals(
    options: RecipeOptions,
    recipe: dict[str, Any],
    planned: "PlannedRun",
    alternatives: "Sequence[Alternative]" = (),
) -> list[Proposal]:
    """Settings that the recipe leaves open and that gain more than the estimate's error, the best first.

    One of them is the fastest of the `alternatives`, the layouts beside a published one, and one a global
    batch that more layouts divide. Last are all others together that keep the numerics, and for which the
    image has what they need. Where settings gain no more than fewer of them, they are left out.
    """
    from megatron_operator.planner.search.rank import EQUAL_SPEED
    from megatron_operator.planner.switches import promising, together

    tried = [_tried(options, recipe, planned, switch) for switch in promising(planned.resolved, planned.plan)]
    found: list[Proposal] = []
    for each in sorted(filter(None, tried), key=lambda each: len(each.switch.settings)):
        if all(each.gain > other.gain + EQUAL_SPEED for other in found if _includes(each, other)):
            found.append(each)
    combined = together(each.switch for each in sorted(found, key=lambda each: -each.gain))
    layout = _other_layout(planned, alternatives)
    if layout and (faster := _tried(options, recipe, planned, layout)):
        found.append(faster)
    batches = (_tried(options, recipe, planned, batch) for batch in _near_batches(planned))
    if fastest := max(filter(None, batches), key=lambda each: each.gain, default=None):
        found.append(fastest)
    found.sort(key=lambda each: -each.gain)
    whole = _tried(options, recipe, planned, combined, together=True) if combined else None
    best = max((each.gain for each in found if whole and _includes(whole, each)), default=0.0)
    return [*found, whole] if whole and whole.gain > best + EQUAL_SPEED else found


def _other_layout(planned: "PlannedRun", alternatives: "Sequence[Alternative]") -> "Switch | None":
    """What sets the fastest of the other layouts; None where the plan's is not a published one."""
    from megatron_operator.planner.switches import Switch

    speeds = [
        (each.expected.tokens_per_second_per_gpu, each)
        for each in alternatives
        if each.expected and each.fits
    ]
    if planned.resolved.layout is None or not speeds:
        return None
    plan, (_, fastest) = planned.plan, max(speeds, key=lambda pair: pair[0])
    sizes: dict[str, Any] = {
        f"parallelism.{to_camel(name)}": getattr(fastest, name)
        for name in _SIZES
        if not (name.startswith("expert") and planned.resolved.model.num_experts is None)
    }
    virtual = fastest.virtual_pipeline_model_parallel_size or 1
    if fastest.pipeline_model_parallel_size > 1 and virtual != (
        plan.virtual_pipeline_model_parallel_size or 1
    ):
        sizes["parallelism.numVirtualStagesPerPipelineRank"] = virtual
    if fastest.micro_batch_size != plan.micro_batch_size:
        sizes["training.microBatchSize"] = fastest.micro_batch_size
    return Switch(sizes, "not the published layout")


def _near_batches(planned: "PlannedRun") -> "Iterator[Switch]":
    """Global batches within an eighth of the run's that more of the accelerators divide."""
    from megatron_operator.planner.divisors import divisors
    from megatron_operator.planner.switches import Switch

    batch, world = planned.plan.global_batch_size, planned.plan.world_size
    units = [unit for unit in divisors(world) if unit <= batch * _NEAR and batch % unit]
    sizes = {near for unit in units[-2:] for near in (batch // unit * unit, batch // unit * unit + unit)}
    for size in sorted(sizes):
        yield Switch({"training.globalBatchSize": size}, f"instead of {batch}", numerics=True)


def _includes(proposal: Proposal, other: Proposal) -> bool:
    """Whether a proposal has all settings of another one."""
    return other.switch.settings.items() <= proposal.switch.settings.items()


def _tried(
    options: RecipeOptions,
    recipe: dict[str, Any],
    planned: "PlannedRun",
    switch: "Switch",
    *,
    together: bool = False,
) -> Proposal | None:
    """The recipe planned with a switch; None where it is refused, or gains less than the estimate's error."""
    from megatron_operator.cli.planning import plan_recipe
    from megatron_operator.planner.switches import least_gain

    changed = copy.deepcopy(recipe)
    for path, value in switch.settings.items():
        set_field(changed, path, value)
    try:
        plan = plan_recipe(options, changed).plan
    except InvalidRecipeError:
        return None
    now = planned.plan.expected
    if plan.expected is None or now is None:
        return None
    gain = plan.expected.tokens_per_second_per_gpu / now.tokens_per_second_per_gpu - 1
    if gain < least_gain(planned.plan):
        return None
    before, after = (ParallelDims.of_plan(each) for each in (planned.plan, plan))
    return Proposal(switch, plan.expected, gain, after if after != before else None, together)


def documents(found: list[Proposal]) -> list[dict[str, Any]]:
    """The proposals for programs."""
    return [
        {
            "settings": dict(each.switch.settings),
            "speedChange": each.gain,
            "expected": each.expected.wire(),
            "together": each.together,
            "layout": _sizes(each.layout) if each.layout else None,
            "changesNumerics": each.switch.numerics,
            "caveat": each.switch.caveat or None,
        }
        for each in found
    ]


def _sizes(layout: ParallelDims) -> dict[str, int | None]:
    """The sizes by the names that they have in the plan."""
    return {to_camel(name): size for name, size in layout.plan_fields().items()}


def show(found: list[Proposal]) -> None:
    """Print one item for each; nothing without any."""
    if not found:
        return
    click.echo()
    click.echo("Faster with, each alone and as estimated:")
    for each in found:
        if each.together:
            click.echo("Those together that keep the numerics and that the image is ready for:")
        settings = ", ".join(f"{path}: {_yaml(value)}" for path, value in each.switch.settings.items())
        caveat = f" ({each.switch.caveat})" if each.switch.caveat else ""
        layout = f"; the layout is then {each.layout.describe()}" if each.layout else ""
        print_item(f"  {each.gain:+5.0%}  ", f"{settings}{caveat}{layout}")


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

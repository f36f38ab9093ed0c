"""Settings that `megatron plan` proposes, each planned with, so that it is accepted and its gain is real."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from pydantic.alias_generators import to_camel

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.status import Expected
from megatron_operator.cli.inputs import RecipeOptions, set_field
from megatron_operator.cli.tables import print_item

if TYPE_CHECKING:
    from megatron_operator.planner import PlannedRun
    from megatron_operator.planner.switches import Switch


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


def proposals(options: RecipeOptions, recipe: dict[str, Any], planned: "PlannedRun") -> list[Proposal]:
    """Settings that the recipe leaves open and that gain more than the estimate's error, the best first.

    Last are all of them together that keep the numerics, and for which the image has what they need. Where
    settings gain no more than fewer of them, they are left out.
    """
    from megatron_operator.planner.search.rank import EQUAL_SPEED
    from megatron_operator.planner.switches import promising, together

    tried = [_tried(options, recipe, planned, switch) for switch in promising(planned.resolved, planned.plan)]
    found: list[Proposal] = []
    for each in sorted(filter(None, tried), key=lambda each: len(each.switch.settings)):
        if all(each.gain > other.gain + EQUAL_SPEED for other in found if _includes(each, other)):
            found.append(each)
    found.sort(key=lambda each: -each.gain)
    combined = together(each.switch for each in found)
    whole = _tried(options, recipe, planned, combined, together=True) if combined else None
    best = max((each.gain for each in found if whole and _includes(whole, each)), default=0.0)
    return [*found, whole] if whole and whole.gain > best + EQUAL_SPEED else found


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

"""Settings that `megatron plan` proposes, each planned with, so that it is accepted and its gain is real."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.api.errors import InvalidRecipeError
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


def proposals(options: RecipeOptions, recipe: dict[str, Any], planned: "PlannedRun") -> list[Proposal]:
    """Settings that the recipe leaves open and that gain more than the estimate's error, the best first."""
    from megatron_operator.cli.planning import plan_recipe
    from megatron_operator.planner.switches import least_gain, promising

    found = []
    for switch in promising(planned.resolved, planned.plan):
        changed = copy.deepcopy(recipe)
        for path, value in switch.settings.items():
            set_field(changed, path, value)
        try:
            expected = plan_recipe(options, changed).plan.expected
        except InvalidRecipeError:
            continue
        now = planned.plan.expected
        if expected is None or now is None:
            continue
        gain = expected.tokens_per_second_per_gpu / now.tokens_per_second_per_gpu - 1
        if gain >= least_gain(planned.plan):
            found.append(Proposal(switch, expected, gain))
    return sorted(found, key=lambda each: -each.gain)


def documents(found: list[Proposal]) -> list[dict[str, Any]]:
    """The proposals for programs."""
    return [
        {
            "settings": dict(each.switch.settings),
            "speedChange": each.gain,
            "expected": each.expected.wire(),
            "caveat": each.switch.caveat or None,
        }
        for each in found
    ]


def show(found: list[Proposal]) -> None:
    """Print one item for each; nothing without any."""
    if not found:
        return
    click.echo()
    click.echo("Faster with, each alone and as estimated:")
    for each in found:
        settings = ", ".join(f"{path}: {_yaml(value)}" for path, value in each.switch.settings.items())
        caveat = f" ({each.switch.caveat})" if each.switch.caveat else ""
        print_item(f"  {each.gain:+5.0%}  ", f"{settings}{caveat}")


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)

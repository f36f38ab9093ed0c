"""Predicted speed in `megatron diff`: of the function, of the recipe as published, and of each override."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.status import Expected
from megatron_operator.cli.tables import Column, print_fitting, print_item

if TYPE_CHECKING:
    from megatron_operator.planner import PlannedRun
    from megatron_operator.planner.function_settings import ChangedSetting
    from megatron_operator.planner.left_out import FunctionSpeed

_SECTIONS = ("model", "training", "parallelism", "megatronArgs")
"""Sections of the spec that change the speed."""
_COLUMNS = (Column("step"), Column("tokens/s/GPU"), Column("change"), Column("predicted for"))
_SAME = 5e-4
"""Changes of the speed below this are shown as none."""


@dataclass(frozen=True, slots=True)
class Override:
    """A setting of the recipe that differs from the published one, planned without the recipe's others."""

    field: str
    published: Any
    value: Any
    expected: Expected | None
    error: str | None
    """Why the published recipe with only this setting is refused."""


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """What speed costs on the way from a function to a recipe."""

    function: "FunctionSpeed | None"
    changed: "list[ChangedSetting]"
    """Settings of the function that the recipe as published has otherwise."""
    published: Expected | None
    overrides: list[Override]
    recipe: Expected | None

    @property
    def is_as_published(self) -> bool:
        """Whether the recipe as published has all that its function has."""
        return not self.changed and not (self.function and self.function.costs)


def compare(
    spec: dict[str, Any], published: "PlannedRun", recipe: "PlannedRun",
    plan_with: "Callable[[dict[str, Any]], PlannedRun]",
) -> SpeedComparison:  # fmt: skip
    """Predict every part; `plan_with` plans the published recipe with further sections of a spec.

    `spec` is that of the recipe, `published` the plan without its settings.
    """
    from megatron_operator.planner.function_settings import changed_settings
    from megatron_operator.planner.left_out import function_speed

    return SpeedComparison(
        function=function_speed(published.resolved, published.plan),
        changed=changed_settings(published.resolved, published.plan),
        published=published.plan.expected,
        overrides=list(_overrides(spec, published, plan_with)),
        recipe=recipe.plan.expected,
    )


def _overrides(
    spec: dict[str, Any], published: "PlannedRun", plan_with: "Callable[[dict[str, Any]], PlannedRun]"
) -> Iterator[Override]:
    from megatron_operator.planner.function_settings import value_in_use

    for section in _SECTIONS:
        for leaf, value in (spec.get(section) or {}).items():
            before = value_in_use(published.resolved, published.plan, section, leaf)
            if value == before:
                continue
            expected, error = None, None
            try:
                expected = plan_with({section: {leaf: value}}).plan.expected
            except InvalidRecipeError as refused:
                error = str(refused.errors[0])
            yield Override(f"{section}.{leaf}", before, value, expected, error)


def document(found: SpeedComparison | None) -> dict[str, Any]:
    """The comparison for programs; `speedChange` is that of tokens per second, as a share.

    Of what is left out it is relative to the speed before it, of the recipe as published to the function, of
    all else to the recipe as published. Without a published recipe everything is null.
    """
    if found is None:
        return dict.fromkeys(("function", "published", "overrides", "recipe"))
    function = found.function
    whole = function.expected if function else None
    return {
        "function": {
            "name": function.function,
            "expected": _speed(whole),
            "leftOut": [
                {"setting": cost.setting, "reason": cost.reason, "expected": _speed(cost.expected, before)}
                for cost, before in _ladder(function)
            ],
            "changed": [
                {"field": each.field, "published": each.published, "planned": each.planned}
                for each in found.changed
            ],
        }
        if function
        else None,
        "published": {"expected": _speed(found.published, whole)},
        "overrides": [
            {
                "field": each.field,
                "published": each.published,
                "value": each.value,
                "expected": _speed(each.expected, found.published),
                "error": each.error,
            }
            for each in found.overrides
        ],
        "recipe": {"expected": _speed(found.recipe, found.published)},
    }


def _ladder(function: "FunctionSpeed") -> "Iterator[tuple[Any, Expected | None]]":
    """Each cost, and the speed before it."""
    before = function.expected
    for cost in function.costs:
        yield cost, before
        before = cost.expected or before


def _change(after: Expected | None, before: Expected | None) -> float | None:
    if after is None or before is None:
        return None
    return after.tokens_per_second_per_gpu / before.tokens_per_second_per_gpu - 1


def _speed(expected: Expected | None, before: Expected | None = None) -> dict[str, float | None] | None:
    if expected is None:
        return None
    return {
        "stepSeconds": expected.step_seconds,
        "tokensPerSecondPerGpu": expected.tokens_per_second_per_gpu,
        "speedChange": _change(expected, before),
    }


def show(found: SpeedComparison) -> None:
    """Print what the function has and the plan has not, and the predicted speeds where they differ."""
    if found.function and not found.is_as_published:
        click.secho(found.function.function, bold=True)
        for each in found.changed:
            planned = "not set" if each.planned is None else _text(each.planned)
            print_item("  changed   ", f"{each.field}: {planned}, published {_text(each.published)}")
        if found.function.expected is None:
            for cost in found.function.costs:
                print_item("  left out  ", f"{cost.setting}, {cost.reason}")
    rows = list(_rows(found))
    if len(rows) > 1:
        print_fitting(_COLUMNS, rows)


def _rows(found: SpeedComparison) -> Iterator[tuple[str, str, str, str]]:
    function = found.function
    whole = function.expected if function else None
    if function and whole and function.costs:
        yield _row(whole, None, "the function with all its settings")
        for cost, before in _ladder(function):
            yield _row(cost.expected, before, f"without {cost.setting}, {cost.reason}")
        yield _row(found.published, whole, "the recipe as published, by this operator")
    elif found.published:
        yield _row(found.published, None, "the recipe as published")
    overrides = [each for each in found.overrides if each.error or _differs(each.expected, found.published)]
    for each in overrides:
        published = "" if each.published is None else f" instead of {_text(each.published)}"
        text = f"with only {each.field} {_text(each.value)}{published}"
        yield _row(each.expected, found.published, f"{text}: refused, {each.error}" if each.error else text)
    if overrides or _differs(found.recipe, found.published):
        yield _row(found.recipe, found.published, "this recipe")


def _differs(after: Expected | None, before: Expected | None) -> bool:
    if after is None or before is None:
        return False
    longer = after.step_seconds / before.step_seconds - 1
    return max(abs(longer), abs(_change(after, before) or 0.0)) >= _SAME


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(expected: Expected | None, before: Expected | None, text: str) -> tuple[str, str, str, str]:
    if expected is None:
        return "-", "-", "-", text
    change = _change(expected, before)
    share = "" if change is None else f"{change:+.1%}" if abs(change) >= _SAME else "none"
    return f"{expected.step_seconds:.2f} s", f"{expected.tokens_per_second_per_gpu:,.0f}", share, text

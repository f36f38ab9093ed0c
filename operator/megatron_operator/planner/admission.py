"""Admission of a recipe: resolve and plan it in one step, and report all errors together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Catalog, ResolvedRecipe, resolve_for_planning
from megatron_operator.catalog.sources import archive_errors
from megatron_operator.planner.alternatives import Alternative
from megatron_operator.planner.checks.checkpoint_volume import checkpoint_volume_warnings
from megatron_operator.planner.checks.lint import lint_warnings
from megatron_operator.planner.checks.lowest_rate import lowest_rate_warnings
from megatron_operator.planner.checks.volume_access import volume_access_errors
from megatron_operator.planner.megatron_args import megatron_arguments
from megatron_operator.planner.notes import layout_warnings
from megatron_operator.planner.plan import as_planned, plan, plan_and_alternatives

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class PlannedRun:
    """An admitted recipe: its name, the resolved recipe, its plan and what follows from them."""

    name: str
    namespace: str
    resolved: ResolvedRecipe
    plan: Plan

    @cached_property
    def arguments(self) -> list[str]:
        """Megatron's arguments, as `megatron_arguments` returns them; computed once."""
        return megatron_arguments(self.resolved, self.plan, self.name)

    @property
    def warnings(self) -> list[str]:
        """Notes of the plan that point at a probable mistake."""
        return [
            *layout_warnings(self.plan),
            *checkpoint_volume_warnings(self.resolved, self.plan),
            *(str(error).removeprefix("spec.") for error in _errors_of_new_run(self.resolved)),
            *lowest_rate_warnings(self.resolved),
            *lint_warnings(self.resolved, self.plan),
        ]


def admit(
    name: str,
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None = None,
    previous: Plan | None = None,
    *,
    keeps_layout: bool = True,
) -> PlannedRun:
    """Resolve and plan the recipe `name`; `previous` and `keeps_layout` as for `plan`.

    Without a `namespace`, the platform's namespace limits do not apply.
    Raises InvalidRecipeError with the errors of both steps, each field once.
    """
    resolved, made = _admit(
        spec,
        platform,
        catalog,
        namespace,
        lambda resolved: plan(resolved, previous, keeps_layout=keeps_layout),
        previous,
    )
    return PlannedRun(name, namespace or DEFAULT_NAMESPACE, resolved, made)


def admit_and_compare(
    name: str,
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None = None,
) -> tuple[PlannedRun, list[Alternative]]:
    """Like `admit`, and the other layouts that were considered.

    Raises InvalidRecipeError as `admit` does.
    """
    resolved, (made, alternatives) = _admit(spec, platform, catalog, namespace, plan_and_alternatives)
    return PlannedRun(name, namespace or DEFAULT_NAMESPACE, resolved, made), alternatives


def _errors_of_new_run(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors that are warnings of a run that an earlier release admitted, which goes on."""
    yield from volume_access_errors(resolved)
    yield from archive_errors(resolved.data.sources or ())


def _admit[T](
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None,
    make: Callable[[ResolvedRecipe], T],
    previous: Plan | None = None,
) -> tuple[ResolvedRecipe, T]:
    found = Diagnostics()
    resolved = resolve_for_planning(spec, platform, catalog, namespace, found)
    if previous is None:
        reported = {error.field for error in found.errors}
        found.extend(error for error in _errors_of_new_run(resolved) if error.field not in reported)
    resolved = as_planned(resolved, previous)
    try:
        made = make(resolved)
    except InvalidRecipeError as invalid:
        reported = {error.field for error in found.errors}
        raise InvalidRecipeError(
            [*found.errors, *(error for error in invalid.errors if error.field not in reported)]
        ) from None
    found.raise_errors()
    return resolved, made

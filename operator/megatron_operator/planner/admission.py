"""Whether a recipe can be run: resolved and planned in one go, with everything that is wrong at once."""

from collections.abc import Callable

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import Plan
from megatron_operator.catalog import Catalog, ResolvedRecipe, resolve_for_planning
from megatron_operator.planner.alternatives import Alternative
from megatron_operator.planner.checks.lint import pitfall_notes
from megatron_operator.planner.notes import tight
from megatron_operator.planner.plan import plan, plan_and_alternatives


def admit(
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None = None,
    previous: Plan | None = None,
) -> tuple[ResolvedRecipe, Plan]:
    """The resolved recipe and its plan; `previous` as for `plan`.

    Raises InvalidRecipeError with what both stages find, each field once.
    """
    return _admit(spec, platform, catalog, namespace, lambda resolved: plan(resolved, previous))


def admit_and_compare(
    spec: MegatronRecipeSpec, platform: PlatformConfig, catalog: Catalog, namespace: str | None = None
) -> tuple[ResolvedRecipe, tuple[Plan, list[Alternative]]]:
    """As `admit`, with the layouts that are not the plan."""
    return _admit(spec, platform, catalog, namespace, plan_and_alternatives)


def warnings_of(resolved: ResolvedRecipe, made: Plan) -> list[str]:
    """The notes of a plan that tell of a probable mistake."""
    return [*tight(made.memory_per_gpu), *pitfall_notes(resolved, made)]


def _admit[T](
    spec: MegatronRecipeSpec,
    platform: PlatformConfig,
    catalog: Catalog,
    namespace: str | None,
    make: Callable[[ResolvedRecipe], T],
) -> tuple[ResolvedRecipe, T]:
    errors: list[FieldError] = []
    resolved = resolve_for_planning(spec, platform, catalog, namespace, errors)
    try:
        made = make(resolved)
    except InvalidRecipeError as refused:
        said = {error.field for error in errors}
        raise InvalidRecipeError(
            [*errors, *(error for error in refused.errors if error.field not in said)]
        ) from None
    if errors:
        raise InvalidRecipeError(errors)
    return resolved, made

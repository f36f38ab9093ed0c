"""Parse, resolve and plan a recipe with the functions that the controller calls."""

from pathlib import Path
from typing import Any

import click
from pydantic.alias_generators import to_camel

from megatron_operator import catalog
from megatron_operator.api.errors import FieldError, InvalidRecipeError, PlanningLimitError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.platform_validation import parse_platform
from megatron_operator.api.validation import parse_recipe
from megatron_operator.cli import documents
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.inputs import RecipeOptions
from megatron_operator.cli.limits import planning_limits
from megatron_operator.planner import Alternative, PlannedRun, admit, admit_and_compare

_ALSO_VALUES = frozenset({"image", "imagePullSecrets"})
"""Names that the chart's values and a platform file share."""


def plan_recipe(options: RecipeOptions, resource: dict[str, Any]) -> PlannedRun:
    """Plan a MegatronRecipe object. Raises InvalidRecipeError with the errors that its status would have."""
    spec = parse_recipe(resource)
    name, namespace = _names(resource)
    platform, library = load_platform(options.platform), load_catalog(options.catalog)
    with planning_limits():
        return admit(name, spec, platform, library, namespace)


def plan_with_alternatives(
    options: RecipeOptions, resource: dict[str, Any]
) -> tuple[PlannedRun, list[Alternative]]:
    """Plan a MegatronRecipe object, and list the layouts that were not chosen. Raises InvalidRecipeError."""
    spec = parse_recipe(resource)
    name, namespace = _names(resource)
    platform, library = load_platform(options.platform), load_catalog(options.catalog)
    with planning_limits():
        return admit_and_compare(name, spec, platform, library, namespace)


def refusals(planned: PlannedRun) -> list[FieldError]:
    """Why the operator would refuse a planned run, as in the status of the recipe; none where it starts.

    Raises PlanningLimitError as planning does.
    """
    from megatron_operator import manifests

    try:
        with planning_limits():
            manifests.build(planned, "")
    except PlanningLimitError:
        raise
    except InvalidRecipeError as refused:
        return refused.errors
    return []


def load_catalog(directory: Path | None) -> catalog.Catalog:
    """The catalog with the recipes of a directory; what cannot be read there goes to standard error."""
    library = catalog.load(directory)
    if directory and directory.is_dir() and not any(directory.glob("*.y*ml")):
        click.echo(f"warning: {directory}: has no YAML files; name the directory of the catalog's", err=True)
    for problem in library.problems:
        click.echo(f"warning: {problem}", err=True)
    return library


def _names(resource: dict[str, Any]) -> tuple[str, str]:
    """Name and namespace. Raises InvalidRecipeError without a name, which no API server accepts."""
    metadata = resource.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName")
    if not name:
        fix = "name the run, for example metadata: {name: llama3-8b}"
        raise InvalidRecipeError([FieldError("metadata.name", "is required", fix)])
    return str(name), str(metadata.get("namespace") or "default")


def load_platform(file: Path | None) -> PlatformConfig:
    """The platform of a file, or the default one for None. Raises InvalidRecipeError and CommandError."""
    if file is None:
        return default_platform()
    content = documents.read_yaml(file)
    if isinstance(content, dict) and "kind" in content:
        raise CommandError(
            str(file), f"is a {content['kind']!s:.40}, not a platform file",
            "give the content of the chart's value platform (docs/platform.md), or the chart's values",
        )  # fmt: skip
    at = str(file)
    if isinstance(content, dict) and "platform" in content:
        content, at = _platform_of_values(content, file), f"{file}.platform"
    return parse_platform({} if content is None else content, at)


def _platform_of_values(values: dict[str, Any], file: Path) -> Any:
    """The value `platform` of the chart's values. Raises CommandError for a mix of both kinds of file."""
    fields = {to_camel(name) for name in PlatformConfig.model_fields} - _ALSO_VALUES
    if mixed := sorted(fields & values.keys()):
        raise CommandError(
            f"{file}.{mixed[0]}", "is a field of a platform file, and the file has platform too",
            f"move {mixed[0]} below platform",
        )  # fmt: skip
    return values["platform"]

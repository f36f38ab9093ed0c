"""`megatron validate`: every error of a recipe, as the operator would report it."""

from dataclasses import replace
from typing import Any

import click

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.cli import printing
from megatron_operator.cli.inputs import RecipeOptions, load_recipes, recipe_options


@click.command("validate")
@recipe_options
@printing.output_option
def command(options: RecipeOptions, output: str) -> None:
    """Report every error of a recipe: schema, rules, catalog, layout, memory, Kubernetes objects.

    Exits with 2 for a recipe that the operator would refuse, with the text of its status.

    \b
    megatron validate -f recipe.yaml
    megatron validate --recipe llama3-8b --gpus 12 --accelerator h100-sxm
    """
    from megatron_operator.cli.conversion_jobs import conversion_lines
    from megatron_operator.cli.planning import plan_recipe, refusals
    from megatron_operator.planner.index_memory import index_notes

    errors: list[FieldError] = []
    valid = []
    resources = load_recipes(options)
    for number, resource in enumerate(resources, 1):
        try:
            planned = plan_recipe(options, resource)
        except InvalidRecipeError as error:
            refused = error.errors
        else:
            refused = refusals(planned)
        of = "" if len(resources) == 1 else f"{_title(resource, number)}: "
        errors += [replace(each, field=f"{of}{each.field}") for each in refused]
        if not refused:
            valid.append(planned)
    if errors:
        printing.exit_with_errors(errors, output, runnable=False)
    if output != "table":
        names = [planned.name for planned in valid]
        warnings = {planned.name: planned.warnings for planned in valid if planned.warnings}
        content = {"runnable": True, "valid": names, "errors": []}
        printing.print_data(content | ({"warnings": warnings} if warnings else {}), output)
        return
    for planned in valid:
        p = planned.plan
        click.echo(
            f"{planned.name}: valid on {p.world_size} x {planned.resolved.accelerator_type} "
            f"({ParallelDims.of_plan(p).describe(('tp', 'pp', 'cp', 'dp'))})"
        )
        for warning in planned.warnings:
            click.echo(f"  warning: {warning}")
        for name, text in conversion_lines(planned):
            click.echo(f"  {name}: {text}")
        for note in index_notes(planned.resolved, p):
            click.echo(f"  {note}")
        if planned.resolved.engine == "bridge":
            click.echo(f"  {p.notes[-1]}")


def _title(resource: dict[str, Any], number: int) -> str:
    """The recipe's name, or its position in the file."""
    metadata = resource.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{name!s:.80}" if name else f"recipe {number}"

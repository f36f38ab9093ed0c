"""`megatron validate`: every error of a recipe, as the operator would report it."""

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

    errors: list[FieldError] = []
    valid = []
    for resource in load_recipes(options):
        try:
            planned = plan_recipe(options, resource)
        except InvalidRecipeError as error:
            errors += error.errors
            continue
        if refused := refusals(planned):
            errors += refused
        else:
            valid.append(planned)
    if errors:
        printing.exit_with_errors(errors, output, runnable=False)
    if output != "table":
        names = [planned.name for planned in valid]
        printing.print_data({"runnable": True, "valid": names, "errors": []}, output)
        return
    for planned in valid:
        p = planned.plan
        click.echo(
            f"{planned.name}: valid on {p.world_size} x {planned.resolved.accelerator_type} "
            f"({ParallelDims.of_plan(p).describe(('tp', 'pp', 'cp', 'dp'))})"
        )
        for name, text in conversion_lines(planned):
            click.echo(f"  {name}: {text}")
        if planned.resolved.engine == "bridge":
            click.echo(f"  {p.notes[-1]}")

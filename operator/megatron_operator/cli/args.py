"""`megatron args`: Megatron's command line."""

import shlex

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import RecipeOptions, load_recipe, recipe_options


@click.command("args")
@recipe_options
@printing.output_option
def command(options: RecipeOptions, output: str) -> None:
    """Print Megatron's command line, one flag per line; -o json prints the arguments as a list.

    \b
    megatron args -f recipe.yaml
    megatron args --recipe llama3-8b --gpus 8 --accelerator h100-sxm
    """
    from megatron_operator.cli.planning import plan_recipe

    arguments = plan_recipe(options, load_recipe(options)).arguments
    if output != "table":
        printing.print_data(arguments, output)
        return
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(argument))
    click.echo(" \\\n".join(" ".join(line) for line in lines))

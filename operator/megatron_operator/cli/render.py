"""`megatron render`: the Kubernetes objects of a recipe."""

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import RecipeOptions, load_recipe, recipe_options


@click.command("render")
@recipe_options
@printing.output_option
def command(options: RecipeOptions, output: str) -> None:
    """Print the Kubernetes objects of a recipe: claims, preparation Job, NetworkPolicy, PyTorchJob.

    They are what the operator applies, without the owner's UID, which only the cluster knows, and without
    the Secret with the gang's token, which the job refers to.

    \b
    megatron render -f recipe.yaml --platform platform.yaml
    """
    from megatron_operator import manifests
    from megatron_operator.cli.planning import plan_recipe

    planned = plan_recipe(options, load_recipe(options))
    objects = manifests.build(planned, "").all()
    if output == "json":
        printing.print_data(objects, output)
        return
    for i, manifest in enumerate(objects):
        if i:
            click.echo("---")
        printing.print_data(manifest, "yaml")

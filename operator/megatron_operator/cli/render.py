"""`megatron render`: the Kubernetes objects of a recipe."""

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import RecipeOptions, load_recipe, recipe_options


@click.command("render")
@recipe_options
@printing.output_option
def command(options: RecipeOptions, output: str) -> None:
    """Print the Kubernetes objects of a recipe: claims, Jobs of weights and data, NetworkPolicy, PyTorchJob.

    They are what the operator applies, without the Secret of the gang's token, which the job refers to. Only
    the cluster knows the UID of the recipe: without `metadata.uid` they have no owner, and the token's name,
    MEGATRON_RUN_ID and hashes differ from the cluster's. The operator creates the PyTorchJob once import and
    preparation are complete, and an export Job once the run has succeeded. JSON is one object, a List.

    \b
    megatron render -f recipe.yaml --platform platform.yaml
    megatron render -f recipe.yaml | kubectl diff -f -
    kubectl get mr NAME -o yaml | megatron render -f - -o json
    """
    from megatron_operator import manifests
    from megatron_operator.cli.planning import plan_recipe

    recipe = load_recipe(options)
    planned = plan_recipe(options, recipe)
    uid = (recipe.get("metadata") or {}).get("uid")
    objects = manifests.build(planned, uid if isinstance(uid, str) else "").all()
    if output == "json":
        printing.print_data({"apiVersion": "v1", "kind": "List", "items": objects}, output)
        return
    for i, manifest in enumerate(objects):
        if i:
            click.echo("---")
        printing.print_data(manifest, "yaml")

"""`megatron render`: the Kubernetes objects of a recipe."""

import click

from megatron_operator.cli import output as printing
from megatron_operator.cli.inputs import Question, question, resource


@click.command("render")
@question
@printing.formatted
def command(asked: Question, output: str) -> None:
    """Print the Kubernetes objects of a recipe: claims, preparation, job.

    They are what the operator would apply, without the owner's uid, which only the cluster gives.

    \b
    megatron render -f recipe.yaml --platform platform.yaml
    """
    from megatron_operator import manifests
    from megatron_operator.cli.stages import run

    one = run(asked, resource(asked))
    built = manifests.build(one, "").all()
    if output == "json":
        printing.data(built, output)
        return
    for i, manifest in enumerate(built):
        click.echo("---", nl=True) if i else None
        printing.data(manifest, "yaml")

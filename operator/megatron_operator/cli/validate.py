"""`megatron validate`: everything that is wrong with a recipe, in the operator's words."""

import click

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.cli import output as printing
from megatron_operator.cli.inputs import Question, question, resources


@click.command("validate")
@question
@printing.formatted
def command(asked: Question, output: str) -> None:
    """Say everything that is wrong with a recipe: schema, rules, catalog, layout, memory, objects.

    \b
    megatron validate -f recipe.yaml
    megatron validate --recipe llama3-8b --gpus 12 --accelerator h100-sxm
    """
    from megatron_operator import manifests
    from megatron_operator.cli.stages import run

    errors: list[FieldError] = []
    valid = []
    found = resources(asked)
    for resource in found:
        try:
            one = run(asked, resource)
            if one.resolved.engine == "megatron":
                manifests.build(one, "")
            valid.append(one)
        except InvalidRecipeError as refused:
            errors += refused.errors
    if errors:
        printing.refuse(errors, output)
    if output == "table":
        for one in valid:
            p = one.plan
            click.echo(
                f"{one.name}: valid on {p.world_size} x {one.resolved.accelerator_type} "
                f"(TP {p.tensor_model_parallel_size}, PP {p.pipeline_model_parallel_size}, "
                f"CP {p.context_parallel_size}, DP {p.data_parallel_size})"
            )
            if one.resolved.engine == "bridge":
                click.echo(f"  {p.notes[-1]}")
        return
    printing.data({"valid": [one.name for one in valid], "errors": []}, output)

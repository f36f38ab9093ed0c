"""`megatron args`: Megatron's command line."""

import shlex

import click

from megatron_operator.cli import output as printing
from megatron_operator.cli.inputs import Question, question, resource


@click.command("args")
@question
@printing.formatted
def command(asked: Question, output: str) -> None:
    """Print Megatron's command line, one flag a line; -o json prints the words as a list.

    \b
    megatron args -f recipe.yaml
    megatron args --recipe llama3-8b --gpus 8 --accelerator h100-sxm
    """
    from megatron_operator.cli.stages import run

    words = run(asked, resource(asked)).arguments
    if output != "table":
        printing.data(words, output)
        return
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    click.echo(" \\\n".join(" ".join(line) for line in lines))

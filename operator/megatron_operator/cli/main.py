"""The entry point. A command's module is imported when it is called, so that the shell does not wait."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from megatron_operator.cli import output as printing

_COMMANDS = {
    "recipes": "List the catalog's recipes, or show one whole.",
    "recommend": "Find the recipe for a model, a mode and the GPUs there are.",
    "plan": "Show how a run would lie on its accelerators, and why.",
    "validate": "Say everything that is wrong with a recipe.",
    "args": "Print Megatron's command line.",
    "diff": "Compare a recipe's command line with the published or the running one.",
    "render": "Print the Kubernetes objects of a recipe.",
    "history": "Show what happened to a run on the cluster.",
    "logs": "Print the log of the pod that failed first.",
    "completion": "Print the shell's completion script.",
}


class _Commands(click.Group):
    """Commands by name; help texts are here, so that `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"megatron_operator.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = printing.asked_for(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """A wrong command line is told in the form that it asks for."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.obj != "json":
                raise
            printing.refuse([printing.usage_error(error)], ctx.obj)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="megatron-operator", message="%(version)s")
def cli() -> None:
    """Turn a named recipe into a Megatron Core training run.

    \b
    megatron recipes list
    megatron plan --recipe llama3-8b --gpus 64 --accelerator h100-sxm
    megatron validate -f recipe.yaml
    megatron render -f recipe.yaml | kubectl diff -f -
    """


def main() -> None:
    """`megatron`, and `kubectl megatron` through the name kubectl-megatron."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # saves a look at every installed package
    called = Path(sys.argv[0]).name
    cli(prog_name="kubectl megatron" if called == "kubectl-megatron" else called)


def kubectl_complete() -> None:
    """`kubectl_complete-megatron`, which kubectl calls for what may follow `kubectl megatron`."""
    from megatron_operator.cli.completion import proposals

    *words, incomplete = sys.argv[1:] or [""]
    for line in proposals(cli, words, incomplete):
        click.echo(line)

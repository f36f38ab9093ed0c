"""The entry point. Modules of commands are imported when they are called, to keep the start fast."""

import difflib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from megatron_operator.cli import printing

_COMMANDS = {
    "recipes": "List the recipes of the catalog, or show one.",
    "recommend": "Find the recipe for a model, a mode and a number of GPUs.",
    "init": "Write a commented recipe to start from.",
    "plan": "Show the layout of a run, its memory and speed, and why it was chosen.",
    "validate": "Report every error of a recipe.",
    "args": "Print Megatron's command line.",
    "diff": "Compare a recipe with the published one or with a running job.",
    "render": "Print the Kubernetes objects of a recipe.",
    "explain": "Print the reference of a field.",
    "status": "Show where a run is: phase, progress, loss, speed, last incident.",
    "history": "Show the interruptions, Events and conditions of a run.",
    "reshard": "Change the layout of a run that has checkpoints.",
    "ledger": "Show where the time of a run, or of all runs, went, in hours of accelerators and money.",
    "logs": "Print the log of the pod that failed first.",
    "support-bundle": "Write what others need to find out what is wrong with a run into one archive.",
    "ui": "Serve a web page of runs: progress, charts, incidents, layout.",
    "cluster": "Check what a cluster lacks for runs.",
    "completion": "Print the shell's completion script.",
}


class _Commands(click.Group):
    """Commands by name; help texts are here, so that `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        # The page is built on the SDK, which is built on the other commands.
        package = "ui.command" if cmd_name == "ui" else f"cli.{cmd_name.replace('-', '_')}"
        module = importlib.import_module(f"megatron_operator.{package}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the spelling of the closest command where there is none of this name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(_COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = printing.requested_format(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Print usage errors as JSON if the command line requests JSON."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error = _with_file_option(error)
            if ctx.obj != "json":
                raise error from None
            printing.exit_with_errors([printing.usage_error(error)], ctx.obj)


def _with_file_option(error: click.UsageError) -> click.UsageError:
    """The same error with the option's name where a recipe file was given without it."""
    command = error.ctx.command if error.ctx else None
    takes_file = command is not None and any("--file" in each.opts for each in command.params)
    if not takes_file or not error.message.startswith("Got unexpected extra argument"):
        return error
    return click.UsageError(f"{error.message}; a recipe file is given with -f FILE", error.ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="megatron-operator", message="%(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Turn a named recipe into a Megatron Core training run.

    \b
    megatron recipes list
    megatron plan --recipe llama3-8b --gpus 64 --accelerator h100-sxm
    megatron validate -f recipe.yaml
    megatron render -f recipe.yaml | kubectl diff -f -
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False


def main() -> None:
    """Entry point of `megatron`, and of `kubectl megatron` under the name kubectl-megatron."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # saves a scan of all installed packages
    called = Path(sys.argv[0]).name
    cli(prog_name="kubectl megatron" if called == "kubectl-megatron" else called)


def kubectl_complete() -> None:
    """Entry point of `kubectl_complete-megatron`, which kubectl calls to complete `kubectl megatron`."""
    from megatron_operator.cli.completion import proposals

    *words, incomplete = sys.argv[1:] or [""]
    for line in proposals(cli, words, incomplete):
        click.echo(line)

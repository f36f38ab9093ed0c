"""`megatron status`: where a run is, in a few lines."""

import contextlib
import time
from collections.abc import Callable

import click

from megatron_operator.cli import printing
from megatron_operator.cli.errors import CommandError
from megatron_operator.cli.kubectl import Kubectl, Object, complete_run, kubectl_options

PATIENCE = 120.0
"""Seconds for which --watch goes on without an answer, as the SDK does."""
_FINAL = ("(NotFound)", "(Forbidden)")
"""How messages of the API server begin after which the next answer is the same."""


@click.command("status")
@click.argument("name", shell_complete=complete_run)
@click.option(
    "-w", "--watch", is_flag=True, help="Print again when something changes, until the run is over."
)
@kubectl_options
@printing.output_option
def command(name: str, watch: bool, kubectl: Kubectl, output: str) -> None:
    """Show phase, progress, loss, speed and end of a run, its last incident, and what needs attention.

    \b
    megatron status llama3-8b -n research
    megatron status llama3-8b --watch
    megatron status llama3-8b -o json | jq .progress
    """
    if watch and output != "table":
        raise click.UsageError("--watch prints for people; leave out -o")
    if output != "table":
        recipe = kubectl.recipe(name)
        metadata = {key: recipe["metadata"].get(key) for key in ("name", "namespace")}
        printing.print_data(metadata | (recipe.get("status") or {}), output)
        return
    if not watch:
        _show(kubectl.recipe(name))
        return
    with contextlib.suppress(KeyboardInterrupt):  # the usual end of --watch
        _watch(lambda: kubectl.recipe(name))


def _watch(read: Callable[[], Object]) -> None:
    """Show the run at each change until it is over. Raises CommandError."""
    from megatron_operator.cli import run_status

    recipe = read()
    _show(recipe)
    while run_status.is_outdated(recipe) or not run_status.is_over(recipe):
        time.sleep(run_status.INTERVAL)
        newer = _read_again(read, run_status.INTERVAL)
        if newer.get("status") != recipe.get("status"):
            click.echo()
            _show(newer)
        recipe = newer


def _read_again(read: Callable[[], Object], interval: float) -> Object:
    """The recipe, as soon as it can be read. Raises CommandError where it is gone, and after PATIENCE."""
    deadline, is_reported = time.monotonic() + PATIENCE, False
    while True:
        try:
            return read()
        except CommandError as error:
            if error.errors[0].message.startswith(_FINAL) or time.monotonic() > deadline:
                raise
            if not is_reported:
                click.echo(f"{error} (tried again for {PATIENCE:.0f} s)", err=True)
                is_reported = True
            time.sleep(interval)


def _show(recipe: Object) -> None:
    from megatron_operator.cli.run_status import status_lines
    from megatron_operator.cli.tables import output_width

    for line in status_lines(recipe, time.time(), output_width()):
        click.echo(line)

"""`megatron status`: where a run is, in a few lines."""

import time
from collections.abc import Callable

import click

from megatron_operator.cli import printing
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options


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
    _show(lambda: kubectl.recipe(name), watch=watch)


def _show(read: Callable[[], dict[str, object]], *, watch: bool) -> None:
    from megatron_operator.cli.run_status import INTERVAL, is_outdated, is_over, status_lines
    from megatron_operator.cli.tables import output_width

    shown = None
    while True:
        recipe = read()
        status = recipe.get("status") or {}
        if status != shown:
            if shown is not None:
                click.echo()
            for line in status_lines(recipe, time.time(), output_width()):
                click.echo(line)
            shown = status
        if not watch or (is_over(recipe) and not is_outdated(recipe)):
            return
        try:
            time.sleep(INTERVAL)
        except KeyboardInterrupt:  # the usual end of --watch
            return

"""`megatron ledger`: where the time of a run went."""

import time
from typing import Any

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import single_option
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options


@click.command("ledger")
@click.argument("name", shell_complete=complete_run)
@single_option(
    "--price",
    type=click.FloatRange(0, 1_000_000),
    metavar="PRICE",
    help="Price of an accelerator per hour; default that of the platform.",
)
@kubectl_options
@printing.output_option
def command(name: str, price: float | None, kubectl: Kubectl, output: str) -> None:
    """Divide the time since a recipe's creation into training and what was lost, by cause and node.

    \b
    megatron ledger llama3-8b -n research
    megatron ledger llama3-8b --price 2.5
    megatron ledger llama3-8b -o json | jq '.losses[0]'
    """
    from megatron_operator.cli.errors import CommandError
    from megatron_operator.cli.run_ledger import run_ledger

    found = run_ledger(kubectl.recipe(name), time.time(), price)
    if found is None:
        fix = "it is written with the next change of the run's state; see megatron status"
        raise CommandError(f"recipe {name}", "its status has no ledger of time yet", fix)
    if output != "table":
        printing.print_data(found, output)
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    from megatron_operator.cli.tables import Column, print_fitting
    from megatron_operator.cli.timeline import format_duration

    priced = found["price"] is not None
    click.echo(f"{found['namespace']}/{found['name']}, {found['created']} to {found['until']}")
    click.echo()
    columns = [Column("category"), Column("time"), Column("share"), Column("gpu-hours")]
    rows = [
        [
            each["category"],
            format_duration(each["seconds"]),
            f"{each['share']:.1%}",
            f"{each['gpuHours']:,.1f}",
            *([f"{each['cost']:,.2f}"] if priced else []),
        ]
        for each in [*found["categories"], found["total"] | {"category": "total"}]
    ]
    print_fitting([*columns, *([Column("cost")] if priced else [])], rows)
    if found["losses"]:
        click.echo()
        columns = [Column("lost to"), Column("time"), Column("node"), Column("cause")]
        rows = [
            [each["category"], format_duration(each["seconds"]), each["node"] or "-", each["cause"] or "-"]
            for each in found["losses"]
        ]
        print_fitting(columns, rows)

"""`megatron ledger`: where the time of a run went, or of all runs."""

import time
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import Price, single_option
from megatron_operator.cli.kubectl import Kubectl, complete_run, kubectl_options
from megatron_operator.cli.support_bundle import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from megatron_operator.cli.deleted_runs import DeletedRuns
    from megatron_operator.cli.tables import Column


@click.command("ledger")
@click.argument("name", required=False, shell_complete=complete_run)
@click.option("-A", "--all-namespaces", is_flag=True, help="Add up the runs of all namespaces.")
@click.option("--by-week", is_flag=True, help="Add up by namespace and week, which begins on Monday, UTC.")
@single_option(
    "--price",
    type=Price(),
    metavar="PRICE",
    help="Price of an accelerator per hour; default that of the platform.",
)
@click.option(
    "--operator-namespace", default=OPERATOR_NAMESPACE, show_default=True, help="Namespace of the operator."
)
@kubectl_options
@printing.output_option
def command(
    name: str | None,
    all_namespaces: bool,
    by_week: bool,
    price: float | None,
    operator_namespace: str,
    kubectl: Kubectl,
    output: str,
) -> None:
    """Divide the time since a recipe's creation into training and what was lost, by cause and node.

    Without NAME, add up the GPU-hours of all runs by namespace: those of one, or of all with -A. With
    --by-week also by week. Deleted runs count too.

    \b
    megatron ledger llama3-8b -n research
    megatron ledger llama3-8b --price 2.5
    megatron ledger llama3-8b -o json | jq '.losses[0]'
    megatron ledger --all-namespaces
    megatron ledger --all-namespaces --by-week
    """
    from megatron_operator.cli.deleted_runs import DeletedRuns, deleted_runs, read_records
    from megatron_operator.cli.errors import CommandError

    if all_namespaces and (name is not None or kubectl.namespace is not None):
        given = f"NAME {name}" if name is not None else f"--namespace {kubectl.namespace}"
        fix = "leave out one of them"
        raise CommandError("--all-namespaces", f"adds up the runs of all namespaces, not {given}", fix)
    if name is not None:
        recipe = kubectl.recipe(name)
        if by_week:
            _weeks([recipe], price, DeletedRuns(not_counted=None), output)
        else:
            _run(recipe, price, output)
        return
    # Before the recipes: a record of a run that is not among them is that of a deleted one.
    records = read_records(kubectl, operator_namespace)
    recipes = kubectl.recipes(all_namespaces=all_namespaces)
    namespace = None if all_namespaces else kubectl.namespace or kubectl.current_namespace()
    (_weeks if by_week else _fleet)(recipes, price, deleted_runs(records, recipes, namespace), output)


def _run(recipe: dict[str, Any], price: float | None, output: str) -> None:
    from megatron_operator.cli.errors import CommandError
    from megatron_operator.cli.run_ledger import run_ledger

    found = run_ledger(recipe, time.time(), price)
    if found is None:
        fix = "it is written with the next change of the run's state; see megatron status"
        raise CommandError(
            f"recipe {recipe['metadata']['name']}", "its status has no ledger of time yet", fix
        )
    if output != "table":
        printing.print_data(found, output)
        return
    _print(found)


def _fleet(recipes: list[dict[str, Any]], price: float | None, deleted: "DeletedRuns", output: str) -> None:
    from megatron_operator.cli.fleet_ledger import fleet_ledger

    found = fleet_ledger(recipes, time.time(), price, deleted)
    if output != "table":
        printing.print_data(found, output)
        return
    _print_fleet(found)


def _weeks(recipes: list[dict[str, Any]], price: float | None, deleted: "DeletedRuns", output: str) -> None:
    from megatron_operator.cli.fleet_ledger import left_out
    from megatron_operator.cli.tables import Column, print_fitting, print_wrapped
    from megatron_operator.cli.weekly_ledger import weekly_ledger

    found = weekly_ledger(recipes, time.time(), price, deleted)
    if output != "table":
        printing.print_data(found, output)
        return
    priced = any(each["cost"] is not None for each in found["weeks"])
    some_deleted = any(each["deletedRuns"] or each["deletedGpuHours"] for each in found["weeks"])
    columns = [
        *(Column(name) for name in ("week of", "namespace", "runs", "gpu-hours", "lost", "share")),
        *_more_columns(priced=priced, deleted=some_deleted),
    ]
    rows = [
        [
            each["week"],
            each["namespace"],
            f"{each['runs']:,}",
            *_amounts(each, priced=priced, deleted=some_deleted),
        ]
        for each in found["weeks"]
    ]
    if rows:
        print_fitting(columns, rows)
        click.echo()
    for note in left_out(found):
        print_wrapped(note)


def _more_columns(*, priced: bool, deleted: bool) -> list["Column"]:
    from megatron_operator.cli.tables import Column

    return [*([Column("cost")] if priced else []), *([Column("of deleted runs")] if deleted else [])]


def _amounts(entry: dict[str, Any], *, priced: bool, deleted: bool) -> list[str]:
    """Cells of GPU-hours, lost ones, their share, the cost and the GPU-hours of deleted runs.

    The last two where any row has them.
    """
    return [
        f"{entry['gpuHours']:,.1f}",
        f"{entry['lostGpuHours']:,.1f}",
        f"{entry['lostShare']:.1%}",
        *([] if not priced else ["-" if entry["cost"] is None else f"{entry['cost']:,.2f}"]),
        *([f"{entry['deletedGpuHours']:,.1f}"] if deleted else []),
    ]


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


def _print_fleet(found: dict[str, Any]) -> None:
    from megatron_operator.cli.fleet_ledger import left_out
    from megatron_operator.cli.tables import Column, print_fitting, print_wrapped

    total = found["total"]
    priced, deleted = total["cost"] is not None, total["deletedRuns"] > 0
    columns = [Column("namespace"), Column("runs"), Column("gpu-hours"), Column("lost"), Column("share")]
    rows = [
        [
            each["namespace"],
            f"{each['runs']:,}",
            *_amounts(each, priced=priced, deleted=deleted),
        ]
        for each in [*found["namespaces"], total | {"namespace": "total"}]
    ]
    print_fitting([*columns, *_more_columns(priced=priced, deleted=deleted)], rows)
    click.echo()
    whole = total["gpuHours"]
    rows = [
        [each["category"], f"{each['gpuHours']:,.1f}", f"{each['gpuHours'] / whole:.1%}"]
        for each in total["categories"]
        if each["gpuHours"]
    ]
    if rows:
        print_fitting([Column("category"), Column("gpu-hours"), Column("share")], rows)
        click.echo()
    for note in left_out(found):
        print_wrapped(note)

"""`megatron recipes`: the catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.cli import printing
from megatron_operator.cli.inputs import (
    CATALOG_DIRECTORY,
    Count,
    ModeChoice,
    complete_accelerator,
    complete_family,
    complete_recipe,
    single_option,
)

if TYPE_CHECKING:
    from megatron_operator.catalog import Entry

_CATALOG = single_option("--catalog", type=CATALOG_DIRECTORY, help="Directory with additional recipes.")


@click.group("recipes", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List or show the recipes of the catalog.

    \b
    megatron recipes list
    megatron recipes show llama3-8b
    """
    if ctx.invoked_subcommand is None:
        # Through the parser: the options' values are what their callbacks make of them.
        with list_recipes.make_context("list", [], parent=ctx) as without_options:
            list_recipes.invoke(without_options)


@command.command("list")
@single_option(
    "--family", metavar="NAME", shell_complete=complete_family, help="Only recipes of this family."
)
@single_option("--mode", type=ModeChoice(), help="Only recipes of this purpose.")
@single_option("--engine", type=click.Choice(["megatron", "bridge"]), help="Only recipes of this engine.")
@single_option("--gpus", type=Count(min=1), metavar="N", help="Only those published for N accelerators.")
@single_option(
    "--accelerator",
    metavar="TYPE",
    shell_complete=complete_accelerator,
    help="Only those published for this accelerator.",
)
@single_option("--search", metavar="WORDS", help="Only those with these words in name or description.")
@_CATALOG
@printing.output_option
def list_recipes(catalog: Path | None, output: str, **options: Any) -> None:
    """List recipes, all of them without filters; exits with 2 where none passes the filters.

    The table fits the terminal. In a pipe, each recipe is one line.

    \b
    megatron recipes list --family llama3 --engine megatron
    megatron recipes list --mode pretrain --gpus 64 --accelerator h100-sxm
    megatron recipes list --search "moe 30b"
    megatron recipes list -o json | jq -r '.[] | select(.modes[] == "sft") | .name'
    """
    from megatron_operator.cli.planning import load_catalog
    from megatron_operator.cli.recipe_filters import Options, filters, matching, offered_layouts
    from megatron_operator.cli.tables import Column, print_fitting

    everything = list(load_catalog(catalog))
    chosen = filters(everything, Options(**options))
    entries = matching(everything, chosen)
    if output != "table":
        printing.print_data([_listed(e) for e in entries], output)
        return
    rows = [
        (
            e.name,
            e.family,
            e.engine,
            ",".join(e.modes),
            ", ".join(list(dict.fromkeys(x.title for x in offered_layouts(e)))[:1]),
            e.description,
        )
        for e in entries
    ]
    columns = (
        Column("name"),
        Column("family", optional=True),
        Column("engine"),
        Column("modes"),
        Column("published layout", optional=True),
        Column("description"),
    )
    print_fitting(columns, rows, enough=26)


def _listed(entry: Entry) -> dict[str, object]:
    from megatron_operator.cli.recipe_filters import offered_layouts

    return {
        "name": entry.name,
        "family": entry.family,
        "engine": entry.engine,
        "modes": list(entry.modes),
        "layouts": [
            {"accelerators": list(x.accelerators), "count": x.count, "source": x.source}
            | ({"function": x.function} if x.function else {})
            for x in offered_layouts(entry)
        ],
        "source": entry.source,
        "description": entry.description,
        "aliases": list(entry.aliases),
    }


@command.command("show")
@click.argument("name", shell_complete=complete_recipe)
@_CATALOG
@printing.output_option
def show(name: str, catalog: Path | None, output: str) -> None:
    """Show all settings of a recipe, with its source and corrections.

    \b
    megatron recipes show llama3-8b
    """
    from megatron_operator.cli.planning import load_catalog

    try:
        entry = load_catalog(catalog).get(name)
    except InvalidRecipeError as unknown:
        fixes = [replace(each, fix=each.fix.partition("; or set model")[0]) for each in unknown.errors]
        raise InvalidRecipeError([replace(each, field="NAME") for each in fixes]) from None
    shown = entry.wire()
    if output == "json":
        printing.print_data(shown, "json")
        return
    if entry.functions:  # up to dozens: one line each keeps the output readable
        shown["functions"] = {str(x.function): f"{x.title}, {x.precision}" for x in entry.functions}
    printing.print_data(shown, "yaml")

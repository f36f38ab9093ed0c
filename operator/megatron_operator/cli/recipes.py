"""`megatron recipes`: the catalog."""

from pathlib import Path

import click

from megatron_operator.cli import printing
from megatron_operator.cli.inputs import CATALOG_DIRECTORY, complete_recipe, single_option

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
        ctx.invoke(list_recipes)


@command.command("list")
@click.option("--family", help="Only recipes of this family.")
@_CATALOG
@printing.output_option
def list_recipes(family: str | None, catalog: Path | None, output: str) -> None:
    """List all recipes.

    \b
    megatron recipes list --family llama3
    megatron recipes list -o json | jq -r '.[] | select(.modes[] == "sft") | .name'
    """
    from megatron_operator.cli.planning import load_catalog

    entries = [e for e in load_catalog(catalog) if family is None or e.family == family]
    if output != "table":
        listed = [
            {
                "name": e.name,
                "family": e.family,
                "engine": e.engine,
                "modes": list(e.modes),
                "layouts": [
                    {"accelerators": list(x.accelerators), "count": x.count, "source": x.source}
                    | ({"function": x.function} if x.function else {})
                    for x in e.layouts
                ],
                "source": e.source,
                "description": e.description,
                "aliases": list(e.aliases),
            }
            for e in entries
        ]
        printing.print_data(listed, output)
        return
    rows = [
        (
            e.name,
            e.family,
            e.engine,
            ",".join(e.modes),
            ", ".join(list(dict.fromkeys(x.title for x in e.layouts))[:3]),
            e.description,
        )
        for e in entries
    ]
    printing.print_table(("name", "family", "engine", "modes", "published layouts", "description"), rows)


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

    entry = load_catalog(catalog).get(name)
    shown = entry.wire()
    if output == "json":
        printing.print_data(shown, "json")
        return
    if entry.functions:  # up to dozens: one line each keeps the output readable
        shown["functions"] = {str(x.function): f"{x.title}, {x.precision}" for x in entry.functions}
    printing.print_data(shown, "yaml")

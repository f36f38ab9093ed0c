"""`megatron explain`: the reference of a field."""

from typing import Any

import click

from megatron_operator.cli import printing


def complete_field(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Paths of fields that start with `incomplete`, one level deeper at most."""
    from megatron_operator.cli.field_reference import fields

    depth = incomplete.count(".")
    paths = [each.path for each in fields()]
    return [path for path in paths if path.startswith(incomplete) and path.count(".") <= depth]


@click.command("explain")
@click.argument("field", shell_complete=complete_field)
@printing.output_option
def command(field: str, output: str) -> None:
    """Print the reference of a field of a recipe, its status or the platform file, and of what is below it.

    FIELD is a path (spec.checkpoint, platform.accelerators) or the end of one (lr, checkpoint.keep).

    \b
    megatron explain spec.training
    megatron explain globalBatchSize
    megatron explain status.recovery
    megatron explain platform.badNodes
    """
    from megatron_operator.cli.field_reference import fields_below, find, other_name

    found = find(field)
    if output != "table":
        shown = [_document(each) | {"fields": [_document(f) for f in fields_below(each)]} for each in found]
        printing.print_data(shown, output)
        return
    for number, each in enumerate(found):
        if number:
            click.echo()
        _print(each, fields_below(each))
    if all(each.path.startswith("status.") for each in found) and (setting := other_name(field)):
        click.echo(f"\nIn a recipe: {setting}")


def _document(field: Any) -> dict[str, Any]:
    return {
        "path": field.path,
        "type": field.kind,
        "required": field.required,
        "default": field.default,
        "limits": field.limits,
        "description": field.description,
        "flag": field.flag,
        "rules": list(field.rules),
    }


def _print(field: Any, below: Any) -> None:
    from megatron_operator.cli.tables import Column, print_fitting, print_wrapped

    click.secho(field.path, bold=True)
    traits = [field.kind, *(["required"] if field.required else []), *field.limits]
    if field.default is not None:
        traits.append(f"default {field.default}")
    print_wrapped(", ".join(traits), indent=2)
    if field.description:
        print_wrapped(field.description, indent=2)
    if field.flag:
        print_wrapped(f"Megatron's flag: --{field.flag}", indent=2)
    for rule in field.rules:
        print_wrapped(f"refused if: {rule}", indent=2)
    if not below:
        return
    click.echo()
    rows = [
        (
            f"  {each.name}{' *' if each.required else ''}",
            each.kind if len(each.kind) <= 24 else "choice",
            "" if each.default is None else each.default,
            each.description,
        )
        for each in below
    ]
    columns = (
        Column("  field"),
        Column("type", optional=True),
        Column("default", optional=True),
        Column("meaning"),
    )
    print_fitting(columns, rows, enough=36)
    if any(each.required for each in below):
        click.echo("  * required")

"""Output of commands: tables, JSON or YAML; errors on standard error with exit code 2."""

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.cli.errors import CommandError

EXIT_INVALID = 2
FORMATS = ("table", "json", "yaml")


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -o to a command, and print its errors: on standard error, or as JSON on standard output."""

    @wraps(command)
    def wrapped(*args: Any, output: str, **rest: Any) -> Any:
        try:
            return command(*args, output=output, **rest)
        except (InvalidRecipeError, CommandError) as error:
            runnable = False if isinstance(error, InvalidRecipeError) else None
            exit_with_errors(error.errors, output, runnable=runnable)

    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Output format.",
    )(wrapped)


def requested_format(arguments: Sequence[str]) -> str:
    """The format of a command line that may not parse; the default where it sets none."""
    for i, argument in enumerate(arguments):
        following = arguments[i + 1] if i + 1 < len(arguments) else ""
        separate = argument in ("-o", "--output")
        value = following if separate else argument.removeprefix("--output=").removeprefix("-o")
        if value in FORMATS and value != argument:
            return value
    return FORMATS[0]


def usage_error(error: click.UsageError) -> FieldError:
    """A usage error of click in the form of all other errors."""
    parameter = getattr(error, "param", None)
    where = parameter.opts[-1] if parameter is not None else getattr(error, "option_name", None)
    fix = f"see {error.ctx.command_path} --help" if error.ctx else "see --help"
    return FieldError(where or "command line", error.format_message().rstrip("."), fix)


def exit_with_errors(errors: Sequence[FieldError], output: str, *, runnable: bool | None = None) -> None:
    """Print the errors and exit with code 2 (raises click's Exit).

    `runnable` is part of the JSON unless it is None.
    """
    if output == "json":
        verdict = {} if runnable is None else {"runnable": runnable}
        click.echo(json.dumps(verdict | {"errors": error_documents(errors)}, indent=2))
    else:
        print_errors(errors)
    raise click.exceptions.Exit(EXIT_INVALID)


def print_errors(errors: Sequence[FieldError]) -> None:
    """Print one line per error on standard error."""
    for error in errors:
        where = click.style(error.field, fg="red", bold=True)
        click.echo(f"{where}: {error.message}; {error.fix}", err=True)


def error_documents(errors: Sequence[FieldError]) -> list[dict[str, str]]:
    """The errors for programs."""
    return [{"field": e.field, "message": e.message, "fix": e.fix} for e in errors]


def print_data(value: Any, output: str) -> None:
    """Print plain values as JSON, or as YAML that kubectl reads as the same values."""
    if output == "json":
        click.echo(json.dumps(value, indent=2))
        return
    from megatron_operator.api import yaml_documents

    click.echo(yaml_documents.dump(value), nl=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns that are as wide as their widest cell."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    click.secho(
        "  ".join(cell.upper().ljust(w) for cell, w in zip(header, widths, strict=True)).rstrip(), bold=True
    )
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def format_bytes(size: float) -> str:
    """Bytes in GiB, or in MiB below 1 GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def format_count(count: float) -> str:
    """A count with a suffix: 8.03B, 1.57M."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.2f}{unit}"
    return f"{count:.0f}"

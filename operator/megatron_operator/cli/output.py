"""Printing: tables for people, JSON and YAML for programs; refusals on standard error with exit code 2."""

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from megatron_operator.api.errors import FieldError, InvalidRecipeError

EXIT_REFUSED = 2
FORMATS = ("table", "json", "yaml")


def formatted(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -o, and print InvalidRecipeError on standard error, or on standard output as JSON for -o json."""

    @wraps(command)
    def wrapped(*args: Any, output: str, **rest: Any) -> Any:
        try:
            return command(*args, output=output, **rest)
        except InvalidRecipeError as refused:
            refuse(refused.errors, output)

    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print.",
    )(wrapped)


def asked_for(words: Sequence[str]) -> str:
    """The form that a command line asks for, told before it is parsed: it may be wrong."""
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else ""
        said = following if word in ("-o", "--output") else word.removeprefix("--output=").removeprefix("-o")
        if said in FORMATS and said != word:
            return said
    return FORMATS[0]


def usage_error(error: click.UsageError) -> FieldError:
    """A wrong command line as every other refusal."""
    parameter = getattr(error, "param", None)
    where = parameter.opts[-1] if parameter is not None else getattr(error, "option_name", None)
    fix = f"see {error.ctx.command_path} --help" if error.ctx else "see --help"
    return FieldError(where or "command line", error.format_message().rstrip("."), fix)


def refuse(errors: Sequence[FieldError], output: str) -> None:
    """Print why not, and end with exit code 2."""
    if output == "json":
        listed = [{"field": e.field, "message": e.message, "fix": e.fix} for e in errors]
        click.echo(json.dumps({"errors": listed}, indent=2))
    else:
        for error in errors:
            where = click.style(error.field, fg="red", bold=True)
            click.echo(f"{where}: {error.message}; {error.fix}", err=True)
    raise click.exceptions.Exit(EXIT_REFUSED)


def data(value: Any, output: str) -> None:
    """A plain value as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(value, indent=2))
        return
    import yaml

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110), nl=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    click.secho(
        "  ".join(cell.upper().ljust(w) for cell, w in zip(header, widths, strict=True)).rstrip(), bold=True
    )
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def gib(size: float) -> str:
    """Bytes in GiB, or MiB below one of these."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def billions(count: float) -> str:
    """A count in words: 8.03B, 1.57M."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.2f}{unit}"
    return f"{count:.0f}"

"""Tables that fit the terminal: the last column is wrapped, optional ones are left out where it is narrow."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import click

_LEAST_WRAPPED = 24
"""Width below which the last column is not wrapped further: the lines become longer than the terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    optional: bool = False
    """Left out, the first such column first, where the last column would get less than `enough`."""


def output_width() -> int | None:
    """Columns of the output: $COLUMNS, then the terminal; None for a pipe, whose lines are not broken."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, enough: int = _LEAST_WRAPPED
) -> list[str]:
    """Lines of a table, the header first. With a `width` no line is longer, if the other columns leave
    the last one 24 characters.

    `width` is in characters. `enough` is the number of characters that the last column needs; optional
    columns are left out for them.
    """
    kept = list(range(len(columns)))
    widths = [max(len(row[i]) for row in [[c.title for c in columns], *rows]) for i in kept]

    def rest() -> int:
        return (width or 0) - sum(widths[i] + 2 for i in kept[:-1])

    for i in [i for i in kept[:-1] if columns[i].optional]:
        if width is not None and rest() < enough:
            kept.remove(i)
    last = None if width is None else max(_LEAST_WRAPPED, rest())
    lines = []
    for row in [[column.title.upper() for column in columns], *rows]:
        head = "  ".join(row[i].ljust(widths[i]) for i in kept[:-1])
        parts = (
            [row[kept[-1]]]
            if last is None
            else textwrap.wrap(row[kept[-1]], last, break_on_hyphens=False) or [""]
        )
        indent = " " * len(head)
        lines += [f"{indent if n else head}  {part}".rstrip() for n, part in enumerate(parts)]
    return lines


def print_fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], enough: int = _LEAST_WRAPPED
) -> None:
    """Print a table that fits the output, the header in bold; `enough` as for `format_table`."""
    header, *lines = format_table(columns, rows, output_width(), enough)
    click.secho(header, bold=True)
    for line in lines:
        click.echo(line)


def print_item(label: str, text: str) -> None:
    """Print a label and a text that is wrapped beside it; in a pipe, as one line."""
    width = output_width()
    lines = [text]
    if width is not None:
        room = max(_LEAST_WRAPPED, width - len(label))
        lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    for number, line in enumerate(lines):
        click.echo(f"{' ' * len(label) if number else label}{line}")


def print_wrapped(text: str, indent: int = 0) -> None:
    """Print a paragraph behind `indent` spaces that fits the output; in a pipe, as one line."""
    width = output_width()
    margin = " " * indent
    room = None if width is None else max(_LEAST_WRAPPED, width - indent)
    # Words are kept in one piece: an address or a path that is broken cannot be copied.
    lines = [text]
    if room is not None:
        lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
    for line in lines:
        click.echo(f"{margin}{line}")

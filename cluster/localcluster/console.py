"""Progress output: one line per step with its duration, and a progress bar where a step has parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Console:
    """Prints to standard error; standard output is for results."""

    def __init__(self, quiet: bool = False) -> None:
        self._rich = rich.console.Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        """Print one line."""
        self._rich.print(text)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show a step while the block runs, then print it with its duration."""
        began = time.monotonic()
        with self._rich.status(f"{text} ..."):
            yield
        self._rich.print(f"[green]ok[/] {text} [dim]{time.monotonic() - began:.1f} s[/]")

    def parts(self, text: str, names: Sequence[str]) -> Iterator[str]:
        """Iterate over `names` with a progress bar and a line with the duration of each."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(
            *columns, console=self._rich, transient=True, disable=not self._rich.is_terminal
        ) as progress:
            task = progress.add_task(text, total=len(names))
            for name in names:
                progress.update(task, description=f"{text}: {name}")
                began = time.monotonic()
                yield name
                progress.advance(task)
                progress.console.print(
                    f"[green]ok[/] {text}: {name} [dim]{time.monotonic() - began:.1f} s[/]"
                )

"""What a person sees: one line a step, with its seconds; a bar where a step has parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Report:
    """Prints steps to standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def line(self, text: str) -> None:
        self.console.print(text)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say what is being done while it is done, then that it is done and how long it took."""
        began = time.monotonic()
        with self.console.status(f"{text} ..."):
            yield
        self.console.print(f"[green]ok[/] {text} [dim]{time.monotonic() - began:.1f} s[/]")

    def parts(self, text: str, names: Sequence[str]) -> Iterator[str]:
        """Go through `names` behind a bar; a line for each that took long enough to wonder about."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
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

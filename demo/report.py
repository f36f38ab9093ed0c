"""The demo's results: a table, summary.json and the loss curve."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo.plot import plot
from testkit.training_run import IterationRecord


@dataclass(frozen=True)
class Summary:
    """The run in numbers; times in seconds."""

    phase: str
    iterations: int
    killed_at_iteration: int
    """The last iteration that ended before the kill; 0 if there was none."""
    resumed_at_iteration: int | None
    """The first iteration that was done after the kill by a new generation of ranks."""
    restarts: int
    iterations_lost: int
    """Iterations that were done before the kill and had to be repeated."""
    seconds_to_first_step: float | None
    """From the kill to the first iteration after it, usually a repeated one."""
    seconds_to_new_iteration: float | None
    """From the kill to the first iteration that had not been done before."""
    first_loss: float
    last_loss: float
    different_losses: list[int]
    """Iterations whose loss is not the undisturbed run's, to the last digit."""
    tokens: int
    seconds_by_step: dict[str, float]
    """Duration of each step of the demo."""


def summarize(
    phase: str,
    records: Sequence[IterationRecord],
    undisturbed: Sequence[IterationRecord],
    killed_at: float,
    restarts: int,
    tokens_per_iteration: int,
    timings: dict[str, float],
) -> Summary:
    """The numbers of one run.

    Args:
        phase: The run's last phase.
        records: All iterations, in the order they were done.
        undisturbed: The same of the run that nothing was killed in.
        killed_at: Seconds since the epoch.
        restarts: Of status.recovery.
        tokens_per_iteration: Global batch size times sequence length.
        timings: Seconds by step of the demo.

    Raises:
        ValueError: There is no record.
    """
    if not records:
        raise ValueError("the run recorded no iteration")
    # An iteration that was under way at the kill still belongs to the old generation.
    before, resumed = split_at_kill(records, killed_at)
    reached = max((s.iteration for s in before), default=0)
    again = {s.iteration for s in resumed} & {s.iteration for s in before}
    new = [s for s in resumed if s.iteration > reached]
    return Summary(
        phase=phase,
        iterations=max(s.iteration for s in records),
        killed_at_iteration=max((s.iteration for s in before if s.time <= killed_at), default=0),
        resumed_at_iteration=resumed[0].iteration if resumed else None,
        restarts=restarts,
        iterations_lost=len(again),
        seconds_to_first_step=round(resumed[0].time - killed_at, 1) if resumed else None,
        seconds_to_new_iteration=round(new[0].time - killed_at, 1) if new else None,
        first_loss=records[0].loss,
        last_loss=records[-1].loss,
        different_losses=different_losses(records, undisturbed),
        tokens=len({s.iteration for s in records}) * tokens_per_iteration,
        seconds_by_step={name: round(seconds, 1) for name, seconds in timings.items()},
    )


def split_at_kill(
    records: Sequence[IterationRecord], killed_at: float
) -> tuple[list[IterationRecord], list[IterationRecord]]:
    """The records of the ranks that ran at the kill, and of those that were started after it."""
    generation = max((s.generation for s in records if s.time <= killed_at), default=-1)
    before = [s for s in records if s.generation <= generation]
    return before, [s for s in records if s.generation > generation]


def different_losses(records: Sequence[IterationRecord], undisturbed: Sequence[IterationRecord]) -> list[int]:
    """Iterations that one run lacks, or whose losses differ; a repeated one must be equal each time."""
    one, other = _losses(records), _losses(undisturbed)
    return sorted(i for i in one.keys() | other.keys() if len(one.get(i, ())) != 1 or one[i] != other.get(i))


def _losses(records: Sequence[IterationRecord]) -> dict[int, set[float]]:
    found: dict[int, set[float]] = {}
    for record in records:
        found.setdefault(record.iteration, set()).add(record.loss)
    return found


def show(summary: Summary, console: Console) -> None:
    """Print the summary as a table."""
    table = Table(title="The run", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    equal = summary.iterations - len(summary.different_losses)
    for name, value in (
        ("result", summary.phase),
        ("iterations", str(summary.iterations)),
        ("pod killed at iteration", str(summary.killed_at_iteration)),
        ("resumed at iteration", str(summary.resumed_at_iteration or "-")),
        ("restarts", str(summary.restarts)),
        ("iterations lost and repeated", str(summary.iterations_lost)),
        ("kill to first iteration", seconds(summary.seconds_to_first_step)),
        ("kill to first new iteration", seconds(summary.seconds_to_new_iteration)),
        ("first loss", f"{summary.first_loss:.4f}"),
        ("last loss", f"{summary.last_loss:.4f}"),
        ("losses equal to the undisturbed run's", f"{equal} of {summary.iterations}"),
    ):
        table.add_row(name, value)
    console.print(table)


def write(
    summary: Summary,
    records: Sequence[IterationRecord],
    undisturbed: Sequence[IterationRecord],
    killed_at: float,
    directory: Path,
) -> list[Path]:
    """Write summary.json and loss.png into `directory`. Returns their paths."""
    directory.mkdir(exist_ok=True)
    numbers, picture = directory / "summary.json", directory / "loss.png"
    numbers.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    before, resumed = split_at_kill(records, killed_at)
    plot(before, resumed, undisturbed, summary.killed_at_iteration, picture)
    return [numbers, picture]

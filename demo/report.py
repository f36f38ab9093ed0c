"""The demo's results: a table, summary.json and the loss curve."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testkit.training_run import IterationRecord


@dataclass(frozen=True)
class Summary:
    """The run in numbers; times in seconds."""

    phase: str
    iterations: int
    restarts: int
    iterations_lost: int
    """Iterations that were done before the kill and had to be repeated."""
    seconds_to_first_step: float | None
    """From the kill to the first iteration after it, usually a repeated one."""
    seconds_to_new_iteration: float | None
    """From the kill to the first iteration that had not been done before."""
    first_loss: float
    last_loss: float
    tokens: int
    seconds_by_step: dict[str, float]
    """Duration of each step of the demo."""


def summarize(
    phase: str,
    records: Sequence[IterationRecord],
    killed_at: float,
    restarts: int,
    tokens_per_iteration: int,
    timings: dict[str, float],
) -> Summary:
    """The numbers of one run.

    Args:
        phase: The run's last phase.
        records: All iterations, in the order they were done.
        killed_at: Seconds since the epoch.
        restarts: Of status.recovery.
        tokens_per_iteration: Global batch size times sequence length.
        timings: Seconds by step of the demo.

    Raises:
        ValueError: There is no record.
    """
    if not records:
        raise ValueError("the run recorded no iteration")
    generation = max((s.generation for s in records if s.time <= killed_at), default=-1)
    # An iteration that was under way at the kill still belongs to the old generation.
    before = [s for s in records if s.generation <= generation]
    resumed = [s for s in records if s.generation > generation]
    reached = max((s.iteration for s in before), default=0)
    again = {s.iteration for s in resumed} & {s.iteration for s in before}
    new = [s for s in resumed if s.iteration > reached]
    return Summary(
        phase=phase,
        iterations=max(s.iteration for s in records),
        restarts=restarts,
        iterations_lost=len(again),
        seconds_to_first_step=round(resumed[0].time - killed_at, 1) if resumed else None,
        seconds_to_new_iteration=round(new[0].time - killed_at, 1) if new else None,
        first_loss=records[0].loss,
        last_loss=records[-1].loss,
        tokens=len({s.iteration for s in records}) * tokens_per_iteration,
        seconds_by_step={name: round(seconds, 1) for name, seconds in timings.items()},
    )


def show(summary: Summary, console: Console) -> None:
    """Print the summary as a table."""
    table = Table(title="The run", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    for name, value in (
        ("result", summary.phase),
        ("iterations", str(summary.iterations)),
        ("restarts", str(summary.restarts)),
        ("iterations lost and repeated", str(summary.iterations_lost)),
        ("kill to first iteration", seconds(summary.seconds_to_first_step)),
        ("kill to first new iteration", seconds(summary.seconds_to_new_iteration)),
        ("first loss", f"{summary.first_loss:.4f}"),
        ("last loss", f"{summary.last_loss:.4f}"),
    ):
        table.add_row(name, value)
    console.print(table)


def write(
    summary: Summary, records: Sequence[IterationRecord], killed_at: float, directory: Path
) -> list[Path]:
    """Write summary.json and loss.png into `directory`. Returns their paths."""
    directory.mkdir(exist_ok=True)
    numbers = directory / "summary.json"
    numbers.write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return [numbers, _plot(records, killed_at, directory / "loss.png")]


def _plot(records: Sequence[IterationRecord], killed_at: float, path: Path) -> Path:
    # Imported late: matplotlib takes a second, and only the end of a demo needs it.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    generations = sorted({s.generation for s in records})
    for number, generation in enumerate(generations):
        part = [s for s in records if s.generation == generation]
        axes.plot(
            [s.iteration for s in part],
            [s.loss for s in part],
            linewidth=4 if number == 0 and len(generations) > 1 else 1.6,
            alpha=0.35 if number == 0 and len(generations) > 1 else 1,
            color=f"C{number}",
            label="before the kill" if number == 0 else "after the resume",
        )
    before = [s for s in records if s.time <= killed_at]
    if before and len(generations) > 1:
        last = before[-1]
        resumed = next(s for s in records if s.generation == generations[1])
        axes.axvline(last.iteration, color="crimson", linestyle="--", linewidth=1)
        axes.annotate(
            f"pod killed at {last.iteration}",
            (last.iteration, axes.get_ylim()[1]),
            xytext=(6, -14),
            textcoords="offset points",
            color="crimson",
        )
        axes.plot(resumed.iteration, resumed.loss, "o", color="C1")
        axes.annotate(
            f"resumed at {resumed.iteration}, {resumed.time - killed_at:.0f} s later",
            (resumed.iteration, resumed.loss),
            xytext=(-12, -28),
            textcoords="offset points",
            ha="right",
            color="C1",
            arrowprops={"arrowstyle": "-", "color": "C1"},
        )
    axes.set_xlabel("iteration")
    axes.set_ylabel("lm loss")
    axes.set_title("Training loss across the loss of a pod")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path

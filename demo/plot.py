"""The loss curve of a run that lost a pod, on top of that of the same run undisturbed."""

from collections.abc import Sequence
from pathlib import Path

from testkit.training_run import IterationRecord

UNDISTURBED, BEFORE, AFTER = "#c8c8c8", "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion, on grey: distinct for colour-blind readers too."""


def plot(
    before: Sequence[IterationRecord],
    resumed: Sequence[IterationRecord],
    undisturbed: Sequence[IterationRecord],
    killed_at: int,
    path: Path,
) -> None:
    """Write the picture as PNG; its description names the iteration of the kill, as its text does.

    `before` and `resumed` are the records before and after the kill, in the order they were done.
    """
    # Imported late: matplotlib takes a second, and only the end of a demo needs it.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    killed = f"pod killed at iteration {killed_at}"
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for records, colour, width, label in (
        (undisturbed, UNDISTURBED, 6.0, "undisturbed run"),
        (before, BEFORE, 1.6, "before the kill"),
        (resumed, AFTER, 1.6, "after the resume"),
    ):
        axes.plot(
            [s.iteration for s in records],
            [s.loss for s in records],
            linewidth=width,
            color=colour,
            label=label,
        )
    if resumed:
        axes.axvline(killed_at, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"{killed},\nresumed at {resumed[0].iteration}",
            (killed_at, axes.get_ylim()[1]),
            xytext=(6, -30),
            textcoords="offset points",
        )
    axes.set_xlabel("iteration")
    axes.set_ylabel("lm loss")
    axes.set_title("Training loss across the loss of a pod, and of the same run undisturbed")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=130, metadata={"Description": killed})
    pyplot.close(figure)

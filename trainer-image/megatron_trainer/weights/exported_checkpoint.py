"""Which checkpoint of a run is exported: the newest, that with the lowest validation loss, or any other."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from megatron_contract.environment import VALIDATION_FILE

from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.best_checkpoint import best_complete, read_losses
from megatron_trainer.weights.conversion_error import ConversionError

BEST = "best"


@dataclass(frozen=True)
class ExportedCheckpoint:
    """A checkpoint to export. `folder` is what to read."""

    folder: Path
    iteration: int | None
    """None for weights that were imported."""
    loss: float | None
    """Loss of the validation data, None where it was not evaluated."""
    newest: bool = True
    """Whether it is the one that the tracker names."""


def find(folder: Path, wanted: str | None) -> ExportedCheckpoint:
    """Return the checkpoint of the run in `folder`; `wanted`: an iteration, BEST, or None for the newest.

    Raises ConversionError if there is no such checkpoint.
    """
    text = selection.read_tracker(folder) or ""
    tracked, losses = int(text) if text.isdecimal() else None, read_losses(folder)
    if wanted is None:
        return ExportedCheckpoint(folder, tracked, None if tracked is None else losses.get(tracked))
    iteration: int | None
    if wanted == BEST:
        iteration = best_complete(folder, losses)
    else:
        iteration = (
            int(wanted) if wanted.isdecimal() and int(wanted) in selection.iterations(folder) else None
        )
    if iteration is None:
        there = ", ".join(map(str, selection.iterations(folder)[:10])) or "none"
        why = (
            f"{VALIDATION_FILE} there has no evaluation of a complete checkpoint"
            if wanted == BEST
            else "there is no such checkpoint"
        )
        raise ConversionError(
            f"--iteration {wanted}: {why}; checkpoints in {folder}: {there}; name one, or leave --iteration "
            "out for the newest"
        )
    source = selection.directory(folder, iteration)
    return ExportedCheckpoint(source, iteration, losses.get(iteration), iteration == tracked)


def link(target: Path, exported: Path) -> bool:
    """Make `target` a link to `exported`, the same weights; whether it is one now.

    Some volumes have no links: then the weights are to be written again.
    """
    if exported.is_dir() and not target.exists():
        with contextlib.suppress(OSError):
            target.symlink_to(os.path.relpath(exported, target.parent), target_is_directory=True)
    return target.is_symlink()

"""The checkpoint with the lowest validation loss.

A checkpoint counts with the evaluation of its iteration. Both engines evaluate before they save, except after
the last iteration, so a complete checkpoint that has been evaluated is known to be the best or not. All of it
follows from files on the volume: the directories, and the run's validation.jsonl beside them.
"""

from collections.abc import Mapping
from pathlib import Path

from megatron_contract.environment import VALIDATION_FILE

from megatron_trainer.checkpoints import selection
from megatron_trainer.telemetry.validation_log import ValidationLog, by_loss


def best_complete(root: Path, losses: Mapping[int, float], ckpt_format: str = "torch_dist") -> int | None:
    """Return the iteration with the lowest loss that has a complete checkpoint under `root`.

    `losses`: iteration -> loss of its evaluation. The earlier one of equal losses. Changes nothing.
    Raises OSError.
    """
    present = set(selection.iterations(root))
    for iteration in by_loss({at: loss for at, loss in losses.items() if at in present}):
        if selection.why_incomplete(selection.directory(root, iteration), ckpt_format) is None:
            return iteration
    return None


def read_losses(root: Path) -> Mapping[int, float]:
    """Return the evaluations of the run that saves into `root`: iteration -> loss. Raises OSError."""
    log = ValidationLog(root / VALIDATION_FILE)
    log.read_new()
    return log.losses

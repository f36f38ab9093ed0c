"""Follows the run's evaluations of the validation data: the last, and the one with the lowest loss."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_contract.wire import Message, WireError, load_json

from megatron_trainer.telemetry.appended_lines import AppendedLines
from megatron_trainer.telemetry.progress_log import MOST_ITERATIONS


@dataclass(frozen=True, slots=True)
class Validation(Message):
    """One evaluation, as a line of the file has it: the loss after so many iterations."""

    iteration: int
    lm_loss: float


class ValidationLog:
    """The file of evaluations of a run, over all its generations. Without a path it stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._lines = AppendedLines(path)
        self._losses: dict[int, float] = {}
        self.last: Validation | None = None

    def read_new(self) -> None:
        """Read the lines that were added since the last call; a repeated evaluation replaces the former."""
        for each in _parse(self._lines.read_new()):
            self._losses[each.iteration] = each.lm_loss
            self.last = each

    @property
    def best(self) -> Validation | None:
        """The evaluation with the lowest loss, the earliest of equal ones."""
        if not self._losses:
            return None
        loss, iteration = min((loss, iteration) for iteration, loss in self._losses.items())
        return Validation(iteration, loss)


def _parse(lines: Iterable[bytes]) -> Iterable[Validation]:
    """Yield the evaluations among `lines`; skip one that is not finite, or incomplete as its writer died."""
    for line in lines:
        try:
            found = Validation.from_json(load_json(line))
        except WireError:
            continue
        if 0 <= found.iteration <= MOST_ITERATIONS:
            yield found

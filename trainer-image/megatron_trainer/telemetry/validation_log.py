"""Follows the run's evaluations of the validation data: the last, and the one with the lowest loss."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from megatron_contract.limits import MAX_EVALUATIONS, MOST_ITERATIONS
from megatron_contract.progress import ReportedEvaluation
from megatron_contract.wire import Message, WireError, load_json

from megatron_trainer.telemetry.appended_lines import AppendedLines
from megatron_trainer.telemetry.reporter import ProgressFile


@dataclass(frozen=True, slots=True)
class Validation(Message):
    """One evaluation, as a line of the file has it: the loss after so many iterations."""

    iteration: int
    lm_loss: float
    generation: int = 0


@dataclass(frozen=True, slots=True)
class _Discarded(Message):
    """A line that a resume appends: evaluations so far of iterations after this one no longer count."""

    discarded_after: int
    generation: int = 0


class ValidationLog:
    """The file of evaluations of a run, over all its generations. Without a path it stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._lines = AppendedLines(path)
        self._file = None if path is None else ProgressFile(path)
        self._losses: dict[int, float] = {}
        self._oldest_generation = 0
        self.last: Validation | None = None

    def read_new(self) -> bool:
        """Read the lines that were added since the last call; returns whether any of them counts.

        A repeated evaluation replaces the former.
        """
        found = list(_parse(self._lines.read_new()))
        for each in found:
            if isinstance(each, _Discarded):
                self._discard(each)
            elif each.generation >= self._oldest_generation:
                self._losses[each.iteration] = each.lm_loss
                self.last = each
        return bool(found)

    def discard_after(self, iteration: int, generation: int) -> None:
        """Discard evaluations of later iterations, for all readers: `generation` does them again.

        Call it only while no rank runs.
        """
        self.read_new()
        if self._file is not None and any(each > iteration for each in self._losses):
            self._file.append({"discardedAfter": iteration, "generation": generation})
            self._discard(_Discarded(iteration, generation))

    def _discard(self, mark: _Discarded) -> None:
        self._losses = {at: loss for at, loss in self._losses.items() if at <= mark.discarded_after}
        # A rank of an earlier generation may have been frozen, and appends its evaluation now.
        self._oldest_generation = max(self._oldest_generation, mark.generation)

    @property
    def losses(self) -> Mapping[int, float]:
        """Iteration -> loss of its last evaluation."""
        return MappingProxyType(self._losses)

    @property
    def best(self) -> Validation | None:
        """The evaluation with the lowest loss, the earliest of equal ones."""
        if not self._losses:
            return None
        iteration = by_loss(self._losses)[0]
        return Validation(iteration, self._losses[iteration])

    def summary(self) -> tuple[ReportedEvaluation, ...]:
        """Return at most MAX_EVALUATIONS in order of iterations: some over the whole run, the best, the last.

        As evaluations are added, those in between stay until there are twice as many.
        """
        iterations = sorted(self._losses)
        stride = 1
        while len(iterations) > stride * (MAX_EVALUATIONS - 2):
            stride *= 2
        best = [] if self.best is None else [self.best.iteration]
        shown = sorted({*iterations[::stride], *iterations[-1:], *best})
        return tuple(ReportedEvaluation(each, self._losses[each]) for each in shown)


def by_loss(losses: Mapping[int, float]) -> list[int]:
    """Iterations by their loss, lowest first, the earlier one of equal losses first."""
    return sorted(losses, key=lambda iteration: (losses[iteration], iteration))


def _parse(lines: Iterable[bytes]) -> Iterable[Validation | _Discarded]:
    """Yield what the lines hold; skip an evaluation that is not finite or incomplete as its writer died."""
    for line in lines:
        try:
            value = load_json(line)
            mark = isinstance(value, dict) and "discardedAfter" in value
            found = _Discarded.from_json(value) if mark else Validation.from_json(value)
        except WireError:
            continue
        if isinstance(found, _Discarded) or 0 <= found.iteration <= MOST_ITERATIONS:
            yield found

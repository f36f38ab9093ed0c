"""Follows the run's progress file: which iterations were done, when, and which of them were kept."""

from array import array
from collections.abc import Iterable
from pathlib import Path

from megatron_contract.limits import MOST_ITERATIONS
from megatron_contract.wire import WireError, load_json

from megatron_trainer.telemetry.appended_lines import AppendedLines
from megatron_trainer.telemetry.iteration import IterationRecord


class ProgressLog:
    """The progress file of a run, over all its generations. Without a path it stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._lines = AppendedLines(path)
        # Step seconds of iteration i + 1, 0 if it was skipped. A repeated iteration replaces the discarded
        # one and all after it.
        self._seconds = array("d")
        self.last: IterationRecord | None = None
        self.started_at: float | None = None
        """When the first iteration started, Unix seconds."""
        self.save_seconds = 0.0
        """In saves, also between iterations that were discarded later."""
        self.evaluate_seconds = 0.0
        """In evaluations, the same way."""

    def read_new(self) -> list[IterationRecord]:
        """Read the lines that were added since the last call."""
        records = list(_parse(self._lines.read_new()))
        for record in records:
            self._add(record)
        return records

    def _add(self, record: IterationRecord) -> None:
        seconds = record.step_seconds or 0.0
        if self.started_at is None and record.time is not None:
            self.started_at = record.time - seconds
        self.rewind(record.iteration - 1)
        self._seconds.extend([0.0] * (record.iteration - 1 - len(self._seconds)))
        self._seconds.append(seconds)
        self.save_seconds += record.save_seconds or 0.0
        self.evaluate_seconds += record.evaluate_seconds or 0.0
        self.last = record

    def rewind(self, iteration: int) -> None:
        """Discard all iterations after `iteration`: the run continues from there."""
        del self._seconds[iteration:]

    @property
    def useful_seconds(self) -> float:
        """Sum of the step times of all iterations that were kept."""
        return sum(self._seconds)


def _parse(lines: Iterable[bytes]) -> Iterable[IterationRecord]:
    """Yield the records among `lines`; skip one that is incomplete because its writer was killed."""
    for line in lines:
        try:
            record = IterationRecord.from_json(load_json(line))
        except WireError:
            continue
        known = record.time is not None and record.step_seconds is not None
        if known and 1 <= record.iteration <= MOST_ITERATIONS:
            yield record

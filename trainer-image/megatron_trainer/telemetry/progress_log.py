"""Follows the run's progress file: which iterations were done, when, and which of them were kept."""

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from megatron_contract.wire import WireError, load_json

from megatron_trainer.telemetry.iteration import IterationRecord

MOST_ITERATIONS: Final = 100_000_000
"""Largest iteration that is believed: a damaged line must not reserve memory for as many as it names."""


class ProgressLog:
    """The progress file of a run, over all its generations. Without a path it stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0
        # Step seconds of iteration i + 1, 0 if it was skipped. A repeated iteration replaces the discarded
        # one and all after it.
        self._seconds = array("d")
        self.last: IterationRecord | None = None
        self.started_at: float | None = None
        """When the first iteration started, Unix seconds."""

    def read_new(self) -> list[IterationRecord]:
        """Read the lines that were added since the last call."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        records = list(_parse(text.splitlines()))
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

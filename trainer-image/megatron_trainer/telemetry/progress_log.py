"""Reads the run's progress file as it grows: what was done, when, and how much of it was kept."""

import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Ledger:
    """The progress file of a run, over all its generations. Without a path it stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0
        # Seconds of the step of iteration i + 1, 0 where it was skipped. An iteration that is done again
        # replaces the one that was thrown away, and all after it.
        self._seconds = array("d")
        self.last: dict[str, Any] | None = None
        self.begun_at: float | None = None

    def follow(self) -> list[dict[str, Any]]:
        """Take in the lines that were added since the last call, and return them."""
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
        records = list(_parsed(text.splitlines()))
        for record in records:
            self._take(record)
        return records

    def _take(self, record: dict[str, Any]) -> None:
        if self.begun_at is None:
            self.begun_at = record["time"] - record["stepSeconds"]
        done = record["iteration"]
        self.rewind(done - 1)
        self._seconds.extend([0.0] * (done - 1 - len(self._seconds)))
        self._seconds.append(record["stepSeconds"])
        self.last = record

    def rewind(self, iteration: int) -> None:
        """The run goes on from `iteration`: what was done after it was in vain."""
        del self._seconds[iteration:]

    @property
    def useful_seconds(self) -> float:
        """Sum of the step times of all iterations that were kept."""
        return sum(self._seconds)


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    """The records among `lines`; one that was torn when its writer was killed is passed over."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"iteration", "time", "stepSeconds", "generation"} <= record.keys():
            yield record

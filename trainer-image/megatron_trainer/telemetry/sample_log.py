"""Which samples each iteration read: a file for each data-parallel rank, over all generations of a run.

A line is the start of a generation, with what it read of, or some iterations and the numbers of their
samples. Iterations after the checkpoint of a later generation were discarded, and are kept here.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.limits import MOST_ITERATIONS
from megatron_contract.wire import WireError, load_json

from megatron_trainer.telemetry.reporter import ProgressFile
from megatron_trainer.telemetry.sample_runs import RunsError, compress, expand

NAME: Final = "data-parallel-rank-{}.jsonl"
MOST_BYTES: Final = 64 << 20
"""Of a file; numbers in random order take about eight bytes each."""
MOST_UNWRITTEN: Final = 10_000
"""Numbers that are kept in memory before they are written."""
WRITTEN_EVERY: Final = 600.0
"""Seconds after which they are written, if no checkpoint is saved before."""

SEQUENTIAL, SHUFFLED = "sequential", "shuffled"
"""The order in which a loader numbers its samples: 0, 1, ... over the run, or another one in each epoch."""
TRAINED, SKIPPED, UNFINISHED = "trained", "skipped", "unfinished"
"""What became of an iteration: done, read and left out, or ended by a failure."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a generation reads: since the iteration that it resumed from, by so many data-parallel ranks."""

    generation: int
    resumed_from: int
    ranks: int
    length: int
    """Samples of the dataset."""
    dataset: dict[str, Any]
    """What is known of it: `kind`, `order`, and where it is."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What a data-parallel rank read in iterations `first` to `last`, an equal number of samples in each.

    `numbers` are runs of those that the loader asks its dataset for, from 0. `places` are runs of what the
    dataset returned for them, lines of a file for example, from 0; None if it returned that of the number.
    """

    rank: int
    generation: int
    first: int
    last: int
    state: str
    numbers: list[Any]
    places: list[Any] | None

    def numbers_of(self, first: int, last: int) -> list[int]:
        """Return the numbers of iterations `first` to `last`, as far as these are."""
        return self._cut(self.numbers, first, last)

    def places_of(self, first: int, last: int) -> list[int]:
        """Return the places of iterations `first` to `last`; the numbers if the dataset has no others."""
        return self._cut(self.numbers if self.places is None else self.places, first, last)

    def _cut(self, runs: list[Any], first: int, last: int) -> list[int]:
        numbers = expand(runs)
        each = len(numbers) // (self.last - self.first + 1)
        return numbers[max(0, first - self.first) * each : max(0, last + 1 - self.first) * each]


class SampleLog:
    """Appends what one data-parallel rank reads."""

    def __init__(self, folder: Path, rank: int, start: Start) -> None:
        self._path = folder / NAME.format(rank)
        self._file = ProgressFile(self._path)
        self._start: Start | None = start
        self._generation = start.generation
        self._first = self._iterations = 0
        self._state = TRAINED
        self._numbers: list[int] = []
        self._places: list[int] | None = None
        self._written_at = -math.inf
        self._full = False

    def add(self, iteration: int, numbers: Sequence[int], places: Sequence[int] | None, state: str) -> None:
        """Note the samples of an iteration. Writes the first one of a generation at once."""
        continues = (
            self._iterations > 0
            and iteration == self._first + self._iterations
            and state == self._state
            and len(numbers) * self._iterations == len(self._numbers)
            and (places is None) == (self._places is None)
        )
        if not continues:
            self.flush()
            self._first, self._state = iteration, state
            self._places = None if places is None else []
        self._iterations += 1
        self._numbers += numbers
        if self._places is not None and places is not None:
            self._places += places
        if len(self._numbers) >= MOST_UNWRITTEN or time.monotonic() - self._written_at >= WRITTEN_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what is noted. What a full volume rejects is written later."""
        if not self._iterations:
            return
        if not self._is_full():
            if self._start is not None:
                self._file.append(_start_line(self._start))
                self._start = None
            self._file.append(self._line())
        self._iterations, self._numbers, self._written_at = 0, [], time.monotonic()

    def _line(self) -> dict[str, Any]:
        last = self._first + self._iterations - 1
        numbers = compress(self._numbers)
        line = {"generation": self._generation, "first": self._first, "last": last, "numbers": numbers}
        if self._places is not None:
            line["places"] = compress(self._places)
        return line if self._state == TRAINED else line | {"state": self._state}

    def _is_full(self) -> bool:
        if not self._full and self._size() > MOST_BYTES:
            self._full = True
            print(f"megatron-train: {self._path} has {MOST_BYTES:,} bytes: no more is recorded", flush=True)
        return self._full

    def _size(self) -> int:
        """Bytes of the file; 0 without one, and while its volume fails, which the next write reports."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def _start_line(start: Start) -> dict[str, Any]:
    return {
        "generation": start.generation,
        "resumedFrom": start.resumed_from,
        "ranks": start.ranks,
        "length": start.length,
        "dataset": start.dataset,
    }


def parse(line: bytes, rank: int) -> Start | Readings | None:
    """Return what a line has; None for one that its writer did not finish."""
    try:
        value: Any = load_json(line)
        generation = int(value["generation"])
        if "resumedFrom" in value:
            resumed_from, ranks, length = (int(value[name]) for name in ("resumedFrom", "ranks", "length"))
            return Start(generation, resumed_from, ranks, length, dict(value["dataset"]))
        first, last = int(value["first"]), int(value["last"])
        places = value.get("places")
        known = {len(expand(runs)) for runs in (value["numbers"], places) if runs is not None}
        whole = 1 <= first <= last <= MOST_ITERATIONS and len(known) == 1
        if not whole or known.pop() % (last - first + 1):
            return None
        state = str(value.get("state", TRAINED))
        return Readings(rank, generation, first, last, state, value["numbers"], places)
    except (WireError, RunsError, KeyError, TypeError, ValueError, AttributeError):
        return None

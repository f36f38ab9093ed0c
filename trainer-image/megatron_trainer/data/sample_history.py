"""The samples that a run has read, iteration by iteration, as far as later generations kept its work."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from megatron_contract.limits import MOST_ITERATIONS

from megatron_trainer.telemetry.sample_log import NAME, SEQUENTIAL, UNFINISHED, Readings, Start, parse
from megatron_trainer.telemetry.sample_runs import compress

_SHOWN = 8


@dataclass(frozen=True)
class Kept:
    """Iterations `first` to `last` of a generation that no later one did again."""

    start: Start
    first: int
    last: int


class SampleHistory:
    """What all data-parallel ranks of a run have recorded in a folder."""

    def __init__(self, folder: Path) -> None:
        """Read the files. Raises OSError."""
        self.starts: dict[int, Start] = {}
        """By generation, in their order; those that read nothing are missing."""
        self._readings: dict[int, dict[int, list[Readings]]] = {}
        """Generation -> data-parallel rank -> in the order of iterations."""
        for path in sorted(folder.glob(NAME.format("*"))):
            rank = path.stem.rpartition("-")[2]
            if rank.isdecimal():
                self._read(path, int(rank))
        self.starts = dict(sorted(self.starts.items()))

    def _read(self, path: Path, rank: int) -> None:
        with path.open("rb") as file:
            for line in file:
                each = parse(line, rank)
                if isinstance(each, Start):
                    self.starts.setdefault(each.generation, each)
                elif each is not None:
                    self._readings.setdefault(each.generation, {}).setdefault(rank, []).append(each)

    @property
    def last_iteration(self) -> int:
        """The last iteration that was done, or skipped, and not discarded; 0 without one.

        Ranks of a run that trains do not write at the same moment: it is one that all have recorded.
        """
        newest = max(self.starts, default=None)
        if newest is None:
            return 0
        ranks = self._readings.get(newest, {}).values()
        done = [[each.last for each in readings if each.state != UNFINISHED] for readings in ranks]
        return min((max(last) for last in done if last), default=self.starts[newest].resumed_from)

    def kept(self) -> Iterator[Kept]:
        """Yield the generations whose work was kept, with their iterations, in their order."""
        starts = list(self.starts.values())
        for at, start in enumerate(starts):
            later = [each.resumed_from for each in starts[at + 1 :]]
            last = min([self.last_iteration, *later])
            if last > start.resumed_from:
                yield Kept(start, start.resumed_from + 1, last)

    def generation_of(self, iteration: int) -> int | None:
        """Return the generation whose work of an iteration was kept; None if there is none."""
        return next(
            (kept.start.generation for kept in self.kept() if kept.first <= iteration <= kept.last), None
        )

    def at(self, iteration: int, generation: int) -> dict[int, Readings]:
        """Return by data-parallel rank where it is recorded what a generation read in an iteration."""
        found = {}
        for rank, readings in sorted(self._readings.get(generation, {}).items()):
            at = bisect_right(readings, iteration, key=lambda each: each.first) - 1
            if at >= 0 and readings[at].last >= iteration:
                found[rank] = readings[at]
        return found

    def places(self, until: int = MOST_ITERATIONS) -> dict[int, list[int]]:
        """Return what each kept iteration up to one read, sorted: places in the dataset, or numbers."""
        found: dict[int, list[int]] = {}
        for kept in self.kept():
            for iteration in range(kept.first, min(kept.last, until) + 1):
                ranks = self.at(iteration, kept.start.generation).values()
                found[iteration] = sorted(
                    place for each in ranks for place in each.places_of(iteration, iteration)
                )
        return found

    def problems(self) -> list[str]:
        """Return what is wrong: iterations of which a rank recorded nothing, samples repeated or left out.

        Numbers that are read in order must be consecutive over all generations that read the same dataset.
        One in random order may be there once in each epoch; whether one is left out is not known.
        """
        found: list[str] = []
        read: list[_Read] = []
        for kept in self.kept():
            if not read or read[-1].start.dataset != kept.start.dataset:
                read.append(_Read(kept.start))
            for rank in range(kept.start.ranks):
                readings = self._readings.get(kept.start.generation, {}).get(rank, [])
                iterations = sum(read[-1].add(each, kept) for each in readings)
                if missing := kept.last - kept.first + 1 - iterations:
                    found.append(
                        f"data-parallel rank {rank} has recorded nothing of {missing} of iterations "
                        f"{kept.first} to {kept.last}"
                    )
        return found + [problem for each in read for problem in each.problems()]


@dataclass
class _Read:
    """The numbers of all samples that were read of one dataset."""

    start: Start
    parts: list[np.ndarray[Any, Any]] = field(default_factory=list)
    batch: int = 0
    """Samples of an iteration, the most of all."""

    def add(self, readings: Readings, kept: Kept) -> int:
        """Add the kept part of `readings`. Returns its iterations."""
        first, last = max(readings.first, kept.first), min(readings.last, kept.last)
        if first > last or readings.state == UNFINISHED:
            return 0
        numbers = readings.numbers_of(first, last)
        self.parts.append(np.array(numbers, dtype=np.int64))
        self.batch = max(self.batch, len(numbers) // (last - first + 1) * kept.start.ranks)
        return last - first + 1

    def problems(self) -> Iterator[str]:
        """Yield what is repeated or left out."""
        if not self.parts:
            return
        numbers, times = np.unique(np.concatenate(self.parts), return_counts=True)
        if self.start.dataset.get("order") == SEQUENTIAL:
            most = 1
            gaps = np.flatnonzero(np.diff(numbers) > 1)
            left_out = [each for at in gaps for each in range(int(numbers[at]) + 1, int(numbers[at + 1]))]
            if left_out:
                yield f"samples left out: {_shown(left_out)}"
        else:
            # Loaders leave out the last samples of an epoch that fill no batch.
            epoch = self.start.length - self.start.length % max(self.batch, 1)
            most = -(-int(times.sum()) // max(epoch, 1))
        if repeated := numbers[times > most].tolist():
            how = "read again" if most == 1 else f"read more than {most} times in as many epochs"
            yield f"samples {how}: {_shown(repeated)}"


def _shown(numbers: list[int]) -> str:
    text = ", ".join(map(str, compress(numbers)[:_SHOWN]))
    return f"{text} ({len(numbers):,} in all)"


def difference(found: Mapping[int, list[int]], expected: Mapping[int, list[int]]) -> str | None:
    """Return a line about the first iteration of `found` that read others than `expected`; None for none."""
    for iteration, places in sorted(found.items()):
        if places != expected.get(iteration):
            return f"iteration {iteration} read {places}, expected {expected.get(iteration)}"
    return None

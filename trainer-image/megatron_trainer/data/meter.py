"""How far the preparation is: complete shards of all workers on the volume, and where this worker is."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from megatron_contract.progress import PROGRESS_SCHEMA, PreparationProgress, ProgressReport

from megatron_trainer.data.check_meter import CheckMeter
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.documents import Position

_REFRESH_SECONDS = 5.0
_LOG_SECONDS = 30.0
_RATE_SHARE = 0.01
_RATE_SECONDS = 30.0
"""A rate is known once this share of the work is done, or after this time."""


class Meter:
    """Measures the preparation. `report` may be called by another thread than the rest."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """Begin with nothing to do; `log` takes a line now and then."""
        self._log = log
        self._datasets: Sequence[Dataset] = ()
        self._total = self._current = self._first = 0
        self._has_begun = False
        self._started = self._refreshed = self._logged = time.monotonic()
        self._last = PreparationProgress(0, 0, 0)
        self._check: CheckMeter | None = None

    def begin(self, datasets: Sequence[Dataset]) -> None:
        """Measure these datasets from now on."""
        self._datasets = datasets
        self._total = sum(shard.size for dataset in datasets for shard in dataset.divided)
        self._has_begun = False
        self._restart()
        self._last = self._progress()

    def watched(self, texts: Iterator[str], position: Position) -> Iterator[str]:
        """Pass the documents of a shard on."""
        for text in texts:
            if not self._has_begun:
                # Libraries and the tokenizer were loaded until now.
                self._has_begun = True
                self._restart()
            yield text
            self.refresh(position)
        self._current = 0

    def refresh(self, position: Position | None = None) -> None:
        """Measure again, if that is due; `position` is that in the shard that this worker builds."""
        now = time.monotonic()
        if now - self._refreshed > _REFRESH_SECONDS:
            self._current = 0 if position is None else position.bytes_read()
            self._last = self._progress()
            self._refreshed = now
        if now - self._logged > _LOG_SECONDS:
            self._log(self.line())
            self._logged = now

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Report that what is prepared is being checked."""
        self._last = replace(self._progress(), step="check")
        try:
            yield
        finally:
            self._last = replace(self._last, step="build")

    @contextmanager
    def counting(self) -> Iterator[CheckMeter]:
        """Report what the yielded meter counts."""
        self._check = CheckMeter()
        try:
            yield self._check
        finally:
            self._check = None

    def report(self) -> ProgressReport:
        """Return the answer to /progress."""
        if (check := self._check) is not None:
            return check.report()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return ProgressReport(PROGRESS_SCHEMA, "preparing", updated_at=now, preparation=self._last)

    def line(self) -> str:
        """Return the progress for the log."""
        last = self._last
        rate = "" if last.bytes_per_second is None else f", {last.bytes_per_second / (1 << 20):.1f} MiB/s"
        left = "" if last.seconds_left is None else f", about {last.seconds_left:.0f} s left"
        done, total = last.bytes_done >> 20, last.bytes_total >> 20
        return f"{last.documents:,} documents, {done:,} of {total:,} MiB{rate}{left}"

    def _restart(self) -> None:
        """Measure the rate from now on."""
        self._started = time.monotonic()
        self._first = self._measure()[1]

    def _progress(self) -> PreparationProgress:
        documents, done = self._measure()
        elapsed, made = time.monotonic() - self._started, done - self._first
        is_known = elapsed >= _RATE_SECONDS or made >= _RATE_SHARE * (self._total - self._first)
        if not (is_known and made > 0 and elapsed > 0):
            return PreparationProgress(documents, done, self._total)
        rate = made / elapsed
        return PreparationProgress(documents, done, self._total, rate, (self._total - done) / rate)

    def _measure(self) -> tuple[int, int]:
        documents = done = 0
        for dataset in self._datasets:
            some, read = _done(dataset)
            documents += some
            done += read
        return documents, min(done + self._current, self._total)


def _done(dataset: Dataset) -> tuple[int, int]:
    """Documents and bytes of the complete shards of a dataset."""
    if (counts := dataset.counts()) is not None:
        return counts[0], sum(shard.size for shard in dataset.divided)
    documents = done = 0
    try:
        with os.scandir(dataset.work) as entries:
            for entry in entries:
                number, _, kind = entry.name.partition(".")
                if kind == "lengths" and number.isdecimal():
                    documents += entry.stat().st_size // 4
                    done += dataset.divided[int(number)].size
    except FileNotFoundError:
        pass  # worker 0 is removing them: the dataset is about to be complete
    return documents, done

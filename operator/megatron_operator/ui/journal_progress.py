"""Follows the progress file of a run: the course over its iterations, in bounded memory and time."""

import os
import time
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from megatron_contract.limits import MOST_ITERATIONS, Count, Finite, Seconds, UnixTime
from megatron_contract.wire import Message, WireError, load_json

from megatron_operator.ui.journal_files import open_regular, unreadable
from megatron_operator.ui.points import Point, Samples

CHUNK: Final = 1 << 20
"""Bytes that are read at once; a longer line is skipped."""
MAX_RESUMES: Final = 200
"""Starts that are kept: the newest."""
_TAIL: Final = 64 << 10
"""Bytes from the end that have the last iteration."""
_MAX_SUMS: Final = 20_000


@dataclass(frozen=True, slots=True)
class LoggedIteration(Message):
    """A line of the progress file. None where the rank that wrote it did not know the value."""

    iteration: Count
    generation: Count = 0
    lm_loss: Finite | None = None
    learning_rate: Finite | None = None
    tokens: Count | None = None
    """Tokens of this iteration, of the whole job."""
    step_seconds: Seconds | None = None
    time: UnixTime | None = None
    """When it was done, Unix seconds."""

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the whole job."""
        return self.tokens / self.step_seconds if self.tokens and self.step_seconds else None

    def point(self) -> Point:
        """The point of a chart; MFU is not known, since the file has no peak of the accelerators."""
        return Point(self.iteration, self.lm_loss, self.learning_rate, self.tokens_per_second)


@dataclass(frozen=True, slots=True)
class Resume:
    """A generation began to train after another one."""

    generation: int
    time: float | None
    """When its first iteration was done, Unix seconds."""
    first: int
    """Its first iteration."""
    before: int
    """The last iteration of the generation before it."""


class _UsefulSeconds:
    """Sum of the step times of the iterations that were kept. Of a long run, every nth sum is remembered."""

    def __init__(self) -> None:
        self._iterations = array("q")
        self._sums = array("d")

    def add(self, iteration: int, seconds: float) -> None:
        while self._iterations and self._iterations[-1] >= iteration:
            self._iterations.pop()
            self._sums.pop()
        self._sums.append(self.total + seconds)
        self._iterations.append(iteration)
        if len(self._sums) > _MAX_SUMS:
            first = (len(self._sums) - 1) % 2
            self._iterations, self._sums = self._iterations[first::2], self._sums[first::2]

    @property
    def total(self) -> float:
        return self._sums[-1] if self._sums else 0.0

    def up_to(self, iteration: int) -> float:
        """The sum of all iterations up to this one."""
        count = bisect_right(self._iterations, iteration)
        return self._sums[count - 1] if count else 0.0


class ProgressReader:
    """What the lines of the file that were read so far have. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reset(None)

    def _reset(self, file: tuple[int, int] | None) -> None:
        self._file = file
        self._offset = 0
        self._size = 0
        self._skipping = False
        self._samples = Samples()
        self._useful = _UsefulSeconds()
        self.resumes: deque[Resume] = deque(maxlen=MAX_RESUMES)
        self.repeated = 0
        """Iterations that were done again."""
        self.skipped = 0
        """Lines that could not be read."""
        self.last: LoggedIteration | None = None
        self.started_at: float | None = None
        """When the first iteration began, Unix seconds."""
        self.complete = False
        """Whether all that the writer has finished was read."""
        self.problem: str | None = None
        """Why the file cannot be read."""

    @property
    def points(self) -> list[Point]:
        """In order of iterations, thinned."""
        return self._samples.points()

    def useful_seconds(self, resumed_from: int | None = None) -> float:
        """Sum of the step times of the iterations that were kept.

        `resumed_from`: the iteration from which a later generation continues, which has no line yet.
        """
        return self._useful.total if resumed_from is None else self._useful.up_to(resumed_from)

    @property
    def share(self) -> float:
        """Share of the file that was read, 0 to 1; what follows the last complete line does not count."""
        if self.complete:
            return 1.0
        return min(1.0, self._offset / self._size) if self._size else 0.0

    def advance(self, seconds: float) -> None:
        """Read what was added, for so many seconds at most.

        A file that was replaced or became shorter is read again from its beginning.
        """
        end = time.monotonic() + seconds
        self.complete, self.problem = False, None
        try:
            with open_regular(self._path) as file:
                found = os.fstat(file.fileno())
                identity = found.st_dev, found.st_ino
                if identity != self._file or found.st_size < self._offset:
                    self._reset(identity)
                self._size = found.st_size
                while True:
                    file.seek(self._offset)
                    if not self._take(file.read(CHUNK)):
                        self.complete = True
                        return
                    if time.monotonic() > end:
                        return
        except FileNotFoundError:
            self._reset(None)
            self.complete = True
        except OSError as error:
            self.problem = str(unreadable(self._path, error))

    def _take(self, chunk: bytes) -> bool:
        """Read the complete lines of a chunk; False where it has none and the file ends."""
        length = chunk.rfind(b"\n") + 1
        if not length:
            if len(chunk) < CHUNK:
                return False  # The writer has not finished the line.
            self._skipping = True
            self._offset += len(chunk)
            return True
        lines = chunk[: length - 1].split(b"\n")
        if self._skipping:
            del lines[0]
            self._skipping = False
            self.skipped += 1
        for line in lines:
            if line:
                self._add(line)
        self._offset += length
        return True

    def _add(self, line: bytes) -> None:
        record = _parse(line)
        if record is None:
            self.skipped += 1
            return
        last = self.last
        if self.started_at is None and record.time is not None:
            self.started_at = record.time - (record.step_seconds or 0.0)
        if last is not None:
            self.repeated += max(0, last.iteration + 1 - record.iteration)
            if record.generation != last.generation:
                resume = Resume(record.generation, record.time, record.iteration, last.iteration)
                self.resumes.append(resume)
        self._useful.add(record.iteration, record.step_seconds or 0.0)
        self._samples.put(record.point())
        self.last = record


def last_iteration(path: Path) -> LoggedIteration | None:
    """The last complete line of a progress file; None without one. Raises OSError."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")
    except FileNotFoundError:
        return None
    # What follows the last line end is not finished.
    return next((found for line in reversed(lines[:-1]) if (found := _parse(line)) is not None), None)


def _parse(line: bytes) -> LoggedIteration | None:
    """None for a line that is torn, or that the trainer does not count either."""
    try:
        found = LoggedIteration.from_json(load_json(line))
    except WireError:
        return None
    known = found.time is not None and found.step_seconds is not None
    return found if known and 1 <= found.iteration <= MOST_ITERATIONS else None

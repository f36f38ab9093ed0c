"""What follows the file of scalars: one tracker, its position, and what it does when it cannot be reached."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from megatron_trainer.errors import TrainerError
from megatron_trainer.tracking.scalar_log import (
    Position,
    ScalarLog,
    Scalars,
    load_position,
    save_position,
)

INTERVAL_SECONDS: Final = 1.0
"""Between two reads of the file."""
RETRY_SECONDS: Final = (5.0, 10.0, 30.0, 60.0)
"""Before each attempt after a failed one; the last one repeats."""


class TrackerError(TrainerError):
    """A tracker cannot be reached, or refuses what it is sent. The text has the reason."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status of the answer, if there was one."""

    @property
    def is_refusal(self) -> bool:
        """Whether the tracker would not take the same values later either."""
        return self.status == 400


class Tracker(Protocol):
    """A place where curves are recorded. Each method raises TrackerError or OSError."""

    rewrites: bool
    """Whether a repeated iteration replaces the first; otherwise it is left out."""
    settle_seconds: float
    """How long what was written may still be lost if the process is killed."""
    run: str
    """After `open`: the run that it writes, which a position is kept with."""

    def open(self, position: Position) -> int | None:
        """Connect to the run, or create it. Returns None to continue at `position`, otherwise the last
        iteration that the run has, -1 if it has none: the file is then read from its start.
        """

    def rewind(self, iteration: int) -> None:
        """Remove `iteration` and all later ones; called only if it `rewrites`."""

    def write(self, scalars: list[Scalars]) -> None:
        """Record values, in the order of their iterations."""

    def close(self, ending: str) -> None:
        """End the run: `finished`, `failed`, or `stopped` if it will continue."""


class Follower:
    """Has one tracker record a file, over restarts of both. Calls nothing of it at the same time."""

    def __init__(
        self,
        tracker: Tracker,
        scalars: Path,
        position: Path,
        wait: Callable[[float], str | None],
        log: Callable[[str], None],
    ) -> None:
        """`wait` waits for seconds at most and returns how the run ended, None while it goes on."""
        self._tracker = tracker
        self._file, self._position_file = scalars, position
        self._wait = wait
        self._log = log
        self._ending: str | None = None
        self._problem: str | None = None
        self._unread = False
        self._unsaved = False
        # Positions that are not settled, and when they were reached (monotonic seconds).
        self._unsettled: deque[tuple[float, Position]] = deque()

    def follow(self) -> bool:
        """Record the file until the run ends. Returns whether all of it is recorded."""
        self._position = load_position(self._position_file)
        if not self._retry(self._open):
            return False
        while True:
            # What was appended before the end is read after it.
            ended = self._ending is not None
            if found := self._read_new():
                if not self._retry(lambda found=found: self._record(found)):  # type: ignore[misc]
                    return False
            elif ended:
                return self._retry(self._close) and not self._unread
            else:
                self._save_settled(self._tracker.settle_seconds)
                self._ending = self._wait(INTERVAL_SECONDS)

    def _open(self) -> None:
        known = self._tracker.open(self._position)
        if known is not None:
            # Its own memory counts, which may lack what it was sent last.
            self._position = Position(run=self._tracker.run)
            self._known = known
        else:
            self._known = -1
        self._log_file = ScalarLog(self._file, self._position.offset)
        if self._tracker.rewrites:
            # From the start without a position, which may be lost.
            last = max(0, self._position.iteration)
            self._tracker.rewind(last)
            self._position.rewind(last)

    def _read_new(self) -> list[Scalars]:
        try:
            found = self._log_file.read_new()
        except OSError as error:
            self._unread = True
            self._report(str(error))
            return []
        self._unread = False
        return found

    def _record(self, found: list[Scalars]) -> None:
        """Write what is new in `found`; repeated after an error, it writes the same."""
        position = _copy(self._position)
        new: list[Scalars] = []
        for each in found:
            repeats = each.generation > position.generation and each.iteration <= position.iteration
            if repeats and self._tracker.rewrites:
                self._write(new)
                new = []
                # After an error these are not written again.
                self._position = _copy(position)
                self._tracker.rewind(each.iteration)
                position.rewind(each.iteration)
            values = position.unrecorded(each)
            if values and each.iteration > self._known:
                new.append(replace(each, values=values))
            position.add(each)
        position.offset = self._log_file.start_of_last
        self._write(new)
        self._save(position)

    def _write(self, new: list[Scalars]) -> None:
        try:
            self._tracker.write(new)
        except TrackerError as error:
            if not error.is_refusal:
                raise
            self._log(f"{error}; these values are left out")

    def _save(self, position: Position) -> None:
        self._position = position
        self._unsettled.append((time.monotonic(), position))
        self._save_settled(self._tracker.settle_seconds)

    def _save_settled(self, seconds: float) -> None:
        """Save the newest position that is as old as `seconds`."""
        settled: Position | None = None
        while self._unsettled and time.monotonic() - self._unsettled[0][0] >= seconds:
            settled = self._unsettled.popleft()[1]
        if settled is None:
            return
        try:
            save_position(self._position_file, settled)
        except OSError as error:
            # A later start would send some values again, no more.
            if not self._unsaved:
                self._log(f"{self._position_file} cannot be written: {error}")
            self._unsaved = True
        else:
            self._unsaved = False

    def _close(self) -> None:
        self._tracker.close(self._ending or "stopped")
        self._save_settled(0)

    def _retry(self, call: Callable[[], None]) -> bool:
        """Call until it succeeds. After the end of the run it is called once."""
        for attempt in range(1_000_000):
            try:
                call()
            except (TrackerError, OSError) as error:
                self._report(str(error))
            else:
                if self._problem is not None:
                    self._log("reached again")
                    self._problem = None
                return True
            if self._ending is not None:
                return False
            deadline = time.monotonic() + RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            while self._ending is None and (left := deadline - time.monotonic()) > 0:
                self._ending = self._wait(left)
        return False

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._log(f"{problem}; the training goes on, and this is retried")


def _copy(position: Position) -> Position:
    return replace(position, highest=dict(position.highest))

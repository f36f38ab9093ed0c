"""Runs of which the checkpoint directory is left: what the trainer has recorded there.

A journal is read where it is, and again with each page: it may be of a run that still trains.
"""

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from megatron_contract.environment import PROGRESS_FILE

from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.reported_incidents import PodPlacement, add_reported_incidents
from megatron_operator.ui.journal_files import (
    FoundCheckpoints,
    Journal,
    JournalError,
    find_checkpoints,
    find_journals,
    read_journal,
    shown,
    unreadable,
)
from megatron_operator.ui.journal_hangs import HangStacks, find_hangs
from megatron_operator.ui.journal_progress import LoggedIteration, ProgressReader, Resume, last_iteration
from megatron_operator.ui.points import MAX_SAMPLES, Point, thinned

Object = dict[str, Any]
UID_PREFIX: Final = "journal-"
"""Of UIDs of journals; those of Kubernetes are hexadecimal."""
MAX_ENTRIES: Final = 10_000
"""Entries of a folder among which checkpoint directories are searched."""
READ_SECONDS: Final = 5.0
"""Seconds for which one request reads a progress file; the next one goes on."""
_FOUND_SECONDS: Final = 5.0
"""Seconds for which the directories that were found are not searched again."""
_MAX_READERS: Final = 16
"""Progress files whose points are remembered."""


@dataclass(frozen=True, slots=True)
class JournalRun:
    """A run as its checkpoint directory has it. Times are in Unix seconds."""

    uid: str
    """Made of the directory's path."""
    folder: str
    """Name of the directory around it, which stands where other runs have their namespace."""
    name: str
    directory: str
    journal: Journal
    last: LoggedIteration | None
    """The last line of the progress file."""
    problems: tuple[str, ...]
    recipe: Object
    """In the form of a MegatronRecipe, with the parts of the status that are recorded and without a spec."""

    @property
    def resumed_from(self) -> int | None:
        """From which iteration a generation continues that has not recorded one yet; None without such."""
        newest = self.journal.stored.incidents[-1:]
        if not newest or self.last is None or newest[0].generation <= self.last.generation:
            return None
        return newest[0].resumed_from or 0

    @property
    def until(self) -> float:
        """Up to when the run is known to have existed; 0.0 where nothing has a time."""
        stored = self.journal.stored
        times = [stored.first_started_at, None if self.last is None else self.last.time]
        for each in stored.incidents:
            times += [each.detected_at, each.first_step_at]
        return max((each for each in times if each is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class JournalCourse:
    """What the whole progress file has, and the checkpoints beside it."""

    points: tuple[Point, ...]
    resumes: tuple[Resume, ...]
    repeated: int
    """Iterations that were done again."""
    skipped: int
    """Lines that could not be read."""
    share: float
    """Share of the file that was read so far, 0 to 1."""
    problem: str | None
    """Why the rest cannot be read."""
    started_at: float | None
    useful_seconds: float
    checkpoints: FoundCheckpoints

    @property
    def complete(self) -> bool:
        """Whether all of the file was read."""
        return self.share == 1.0 and self.problem is None


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Some of the journals, in order of their paths."""

    runs: tuple[JournalRun, ...]
    total: int
    """Number of runs on all pages."""
    problems: tuple[str, ...]


class Journals:
    """The journals in some folders. Its methods read files in threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Each folder is a checkpoint directory or has them in it. Raises JournalError where one has none."""
        self._folders = []
        for each in folders:
            try:
                self._folders.append(each.resolve(strict=True))
            except (OSError, RuntimeError) as error:
                raise unreadable(each, error if isinstance(error, OSError) else OSError(str(error))) from None
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._problems: list[str] = []
        self._searched = 0.0
        self._readers: OrderedDict[str, tuple[threading.Lock, ProgressReader]] = OrderedDict()
        for each in self._folders:
            found, hidden = find_journals(each, MAX_ENTRIES)
            if not found and hidden:
                raise hidden[0]
            if not found:
                fix = "name a checkpoint directory, or the folder of several: /checkpoints of the volume"
                message = "has no journal: neither it nor a folder in it has incidents.json or progress.jsonl"
                raise JournalError(each, message, fix)

    async def runs(self, text: str, first: int, count: int) -> JournalPage:
        """`count` runs from `first` whose path has a text."""
        return await asyncio.to_thread(self._runs, text, first, count)

    async def run(self, uid: str) -> JournalRun | None:
        """The run of a UID."""
        return await asyncio.to_thread(self._run, uid)

    async def named(self, folder: str, name: str) -> JournalRun | None:
        """The first run of this name in a folder of this name."""
        return await asyncio.to_thread(self._named, folder, name)

    async def course(self, run: JournalRun) -> JournalCourse | None:
        """The course of a run; None where its directory is gone."""
        return await asyncio.to_thread(self._course, run.uid, run.resumed_from)

    async def hangs(self, run: JournalRun) -> tuple[HangStacks, ...]:
        """The stacks of its newest hangs."""
        return await asyncio.to_thread(self._hangs, run)

    def _hangs(self, run: JournalRun) -> tuple[HangStacks, ...]:
        path = self._search().get(run.uid)
        incidents = run.journal.stored.incidents
        # An incident has the generation that it began; the folder has that which it ended.
        stalled = {each.generation - 1: each.node_rank for each in incidents if each.node_rank is not None}
        return () if path is None else find_hangs(path, stalled)

    def _runs(self, text: str, first: int, count: int) -> JournalPage:
        found = self._search()
        chosen = [
            (uid, path) for uid, path in sorted(found.items(), key=lambda each: each[1])
            if text.lower() in shown(path).lower()
        ]  # fmt: skip
        runs = tuple(_read(uid, path) for uid, path in chosen[first : first + count])
        return JournalPage(runs, len(chosen), tuple(self._problems))

    def _run(self, uid: str) -> JournalRun | None:
        path = self._search().get(uid)
        return None if path is None else _read(uid, path)

    def _named(self, folder: str, name: str) -> JournalRun | None:
        for uid, path in sorted(self._search().items(), key=lambda each: each[1]):
            if (_folder(path), shown(Path(path.name))) == (folder, name):
                return _read(uid, path)
        return None

    def _course(self, uid: str, resumed_from: int | None) -> JournalCourse | None:
        path = self._search().get(uid)
        if path is None:
            return None
        with self._lock:
            lock, reader = self._readers.setdefault(
                uid, (threading.Lock(), ProgressReader(path / PROGRESS_FILE))
            )
            self._readers.move_to_end(uid)
            if len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
        with lock:
            reader.advance(READ_SECONDS)
            points = reader.points
            if len(points) > MAX_SAMPLES // 2:
                # Those after the last thinning are denser, and a chart would look as if it became noisier.
                points = thinned(points)
            return JournalCourse(
                tuple(points),
                tuple(reader.resumes),
                reader.repeated,
                reader.skipped,
                reader.share,
                reader.problem,
                reader.started_at,
                reader.useful_seconds(resumed_from),
                find_checkpoints(path),
            )

    def _search(self) -> dict[str, Path]:
        """UID -> directory of all journals."""
        with self._lock:
            if self._found and time.monotonic() < self._searched + _FOUND_SECONDS:
                return self._found
            found: dict[str, Path] = {}
            problems: list[str] = []
            for folder in self._folders:
                try:
                    paths, hidden = find_journals(folder, MAX_ENTRIES)
                    found |= {_uid(path): path for path in paths}
                    problems += map(str, hidden)
                except JournalError as error:
                    problems.append(str(error))
            self._found, self._problems, self._searched = found, problems, time.monotonic()
            return found


def _uid(path: Path) -> str:
    return f"{UID_PREFIX}{hashlib.sha256(str(path).encode(errors='surrogateescape')).hexdigest()[:12]}"


def _folder(path: Path) -> str:
    return shown(Path(path.parent.name)) if path.parent.name else "root"


def _read(uid: str, path: Path) -> JournalRun:
    """What the small files and the end of the progress file have."""
    journal, last, problems = read_journal(path), None, []
    if journal.problem is not None:
        problems.append(journal.problem)
    try:
        last = last_iteration(path / PROGRESS_FILE)
        if last is None:
            problems.append(f"{shown(path / PROGRESS_FILE)} has no iteration, or is missing: no charts")
    except OSError as error:
        problems.append(str(unreadable(path / PROGRESS_FILE, error)))
    folder, name = _folder(path), shown(Path(path.name))
    recipe = _recipe(uid, folder, name, journal, last)
    return JournalRun(uid, folder, name, shown(path), journal, last, tuple(problems), recipe)


def _recipe(uid: str, folder: str, name: str, journal: Journal, last: LoggedIteration | None) -> Object:
    stored = journal.stored
    nodes = {each.node_rank for each in stored.incidents if each.node_rank is not None}
    placement = {each: PodPlacement(f"node {each}", None) for each in nodes}
    recovery = add_reported_incidents(
        RecoveryStatus(), stored.incidents, placement, bound_at=None, checkpoint=None
    )
    status: Object = {"recovery": recovery.wire()}
    if last is not None:
        status["progress"] = {
            "iteration": last.iteration,
            "lmLoss": last.lm_loss,
            "learningRate": last.learning_rate,
            "stepSeconds": last.step_seconds,
            "tokensPerSecond": last.tokens_per_second,
            "generation": last.generation,
            "time": None if last.time is None else timestamp(last.time),
        }
    metadata = {
        "namespace": folder,
        "name": name,
        "uid": uid,
        "creationTimestamp": timestamp(stored.first_started_at or 0.0),
    }
    return {"metadata": metadata, "status": status}

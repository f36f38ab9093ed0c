"""The files that the trainer leaves in a checkpoint directory. They are read here, and never written."""

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from megatron_contract.environment import JOURNAL_FILE, JOURNAL_SCHEMA, LEASE_FILE, PROGRESS_FILE
from megatron_contract.incident import ReportedIncident
from megatron_contract.limits import LONGEST_TEXT, MAX_INCIDENTS, Count, Items, Text, UnixTime
from megatron_contract.wire import Message, WireError, load_json

from megatron_operator.api.errors import OperatorError
from megatron_operator.api.times import timestamp

MAX_FILE: Final = 1 << 20
"""Bytes of the largest journal that is read; the trainer's own have less than 32 KiB."""
MAX_CHECKPOINTS: Final = 20
"""Checkpoints of a directory that are checked and listed: the newest."""
_ITERATION_DIR: Final = re.compile(r"iter_(\d{7,18})")
_SET_ASIDE: Final = re.compile(r"iter_\d{7,18}\.(broken|rolled-back)-\d+")
_UNFINISHED: Final = "{}: the save has not finished"
_BACKEND: Final = "metadata.json"
_OF_BRIDGE: Final = ("train_state.pt", "run_config.yaml")
_TRACKER: Final = "latest_checkpointed_iteration.txt"
"""What Megatron writes once a checkpoint is complete."""
_OF_FILE_SYSTEM: Final = "lost+found"
"""A folder that only root may read, on many volumes; no run is there."""
_PATH: Final = Text(4096)


class JournalError(OperatorError):
    """A file or directory cannot be read; `fix` is what to do."""

    def __init__(self, path: Path, message: str, fix: str) -> None:
        super().__init__(f"{shown(path)} {message}; {fix}")
        self.path = shown(path)
        self.message = message
        self.fix = fix


@dataclass(frozen=True, slots=True)
class StoredJournal(Message):
    """The part of the run journal that is shown. Times are Unix seconds."""

    schema: Count = JOURNAL_SCHEMA
    first_started_at: UnixTime | None = None
    generation: Count = 0
    """The last one that started; 0 before the first."""
    incidents: Annotated[tuple[ReportedIncident, ...], Items(MAX_INCIDENTS, newest=True)] = ()


@dataclass(frozen=True, slots=True)
class Journal:
    """The run journal, and what stands beside it."""

    stored: StoredJournal = StoredJournal()
    pending: str | None = None
    """Why the Master pod ended, where no pod has replaced it since."""
    recipe_uid: str | None = None
    """UID of the recipe of the newest Master pod."""
    problem: str | None = None
    """Why incidents are not known."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """One directory of a checkpoint."""

    iteration: int
    time: str | None
    """When its save finished, RFC 3339; None where it did not."""
    problem: str | None
    """Why it is incomplete; None for a complete one."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """The checkpoints of a directory."""

    newest: tuple[FoundCheckpoint, ...] = ()
    """At most MAX_CHECKPOINTS, newest first."""
    total: int = 0
    set_aside: int = 0
    """Directories that the trainer has set aside as broken or rolled back."""
    problem: str | None = None
    """Why the directory cannot be listed."""

    @property
    def newest_complete(self) -> FoundCheckpoint | None:
        """The newest of those listed whose save finished."""
        return next((each for each in self.newest if each.problem is None), None)


def shown(path: Path) -> str:
    """A path for people: without characters that UTF-8 cannot encode or that control a terminal."""
    return str(_PATH.fit(str(path)))


def unreadable(path: Path, error: OSError) -> JournalError:
    """What to do about a file or directory that cannot be read."""
    reason = (error.strerror or str(error))[:200]
    fixes = {
        errno.EACCES: "start the page as a user who may read it, or copy incidents.json and progress.jsonl"
        " to another directory and name that",
        errno.ENOENT: "check the path, and that its volume is mounted",
        errno.ENOTDIR: "name the checkpoint directory, not a file in it",
        errno.ELOOP: "remove the symbolic link, which leads to itself",
        errno.EINVAL: "move it away: the trainer writes a regular file of this name",
    }
    fix = fixes.get(error.errno or 0, "check the volume that it is on")
    return JournalError(path, f"cannot be read: {reason}", fix)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read. Raises OSError, also for a pipe or device, which could block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def find_journals(folder: Path, most: int) -> tuple[list[Path], list[JournalError]]:
    """The checkpoint directories among `folder` and the first `most` entries of it, in order of their paths.

    Also those entries of which that cannot be found out. Raises JournalError where `folder` cannot be read.
    """
    try:
        if _has_journal(folder):
            return [folder], []
        with os.scandir(folder) as entries:
            inside = [Path(entry) for _, entry in zip(range(most), entries, strict=False)]
    except OSError as error:
        raise unreadable(folder, error) from None
    found, problems = [], []
    for each in sorted(inside):
        try:
            if _is_directory(each) and _has_journal(each):
                found.append(each)
        except OSError as error:
            if each.name != _OF_FILE_SYSTEM:
                problems.append(unreadable(each, error))
    return found, problems


def _has_journal(folder: Path) -> bool:
    """Whether there is anything of these names. Raises OSError where that cannot be found out."""
    for name in (JOURNAL_FILE, PROGRESS_FILE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(folder / name)
            return True
    return False


def _is_directory(path: Path) -> bool:
    """Raises OSError where that cannot be found out."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False


def read_journal(directory: Path) -> Journal:
    """The journal of a checkpoint directory; what cannot be read is in its `problem`."""
    owner, _ = _load(directory / LEASE_FILE)
    uid = owner.get("runId")
    recipe_uid = str(Text(64).fit(uid)) if isinstance(uid, str) else None
    value, problem = _load(directory / JOURNAL_FILE)
    if problem is not None:
        return Journal(recipe_uid=recipe_uid, problem=problem)
    pending = value.get("pending")
    cause = pending.get("cause") if isinstance(pending, dict) else None
    schema = value.get("schema", JOURNAL_SCHEMA)
    if isinstance(schema, int) and schema != JOURNAL_SCHEMA:
        problem = (
            f"{shown(directory / JOURNAL_FILE)} has format {schema}, this release reads {JOURNAL_SCHEMA}: "
            "use the release of the trainer that wrote it"
        )
        return Journal(recipe_uid=recipe_uid, problem=problem)
    try:
        stored = StoredJournal.from_json(value)
    except WireError as error:
        problem = f"{shown(directory / JOURNAL_FILE)} is damaged ({error}), so incidents are not known"
        return Journal(recipe_uid=recipe_uid, problem=problem)
    text = str(Text(LONGEST_TEXT).fit(cause)) if isinstance(cause, str) else None
    return Journal(stored, text, recipe_uid)


def _load(path: Path) -> tuple[dict[str, Any], str | None]:
    """A JSON object, or {} and why there is none."""
    try:
        return _json_object(path), None
    except FileNotFoundError:
        return {}, f"{shown(path)} is missing, so incidents are not known"
    except OSError as error:
        return {}, str(unreadable(path, error))
    except WireError as error:
        return {}, f"{shown(path)} is damaged ({error}), so incidents are not known"


def _json_object(path: Path) -> dict[str, Any]:
    """Raises OSError, and WireError where it is not one."""
    with open_regular(path) as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise WireError(f"more than {MAX_FILE >> 10} KiB")
    value = load_json(content)
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False  # It is listed, with the reason.


def find_checkpoints(directory: Path) -> FoundCheckpoints:
    """The checkpoints of a directory. One is complete where the files exist that a save writes last; the
    shards are not compared with their metadata, as the trainer does before it loads one.
    """
    iterations, aside = [], 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if (match := _ITERATION_DIR.fullmatch(entry.name)) and not _is_file(entry):
                    iterations.append((int(match[1]), entry.name))
                aside += bool(_SET_ASIDE.fullmatch(entry.name))
    except OSError as error:
        return FoundCheckpoints(problem=str(unreadable(directory, error)))
    iterations.sort(reverse=True)
    paths = [(iteration, directory / name) for iteration, name in iterations[:MAX_CHECKPOINTS]]
    # What Bridge writes last may be missing from the newest; that an older one has it shows the engine.
    bridge = any(_size(path / name) is not None for _, path in paths for name in _OF_BRIDGE)
    # Megatron FSDP writes no metadata.json; the first save of another format has none yet, and no tracker.
    fsdp = bool(_size(directory / _TRACKER)) and all(_size(path / _BACKEND) is None for _, path in paths)
    found = tuple(_check(iteration, path, bridge=bridge, fsdp=fsdp) for iteration, path in paths)
    return FoundCheckpoints(found, len(iterations), aside)


def _check(iteration: int, path: Path, *, bridge: bool, fsdp: bool) -> FoundCheckpoint:
    last, problem = path / (".metadata" if fsdp else _BACKEND), None
    if not _size(last) and (files := list(path.glob("mp_rank_*/*.pt"))):
        # Megatron's older format `torch` has no metadata.
        last = files[0]
        problem = next((f"{each.name} is empty" for each in files if not _size(each)), None)
    else:
        problem = None if fsdp else _problem_of_metadata(last)
        if problem is None and not _size(path / ".metadata"):
            problem = _UNFINISHED.format(".metadata is missing or empty")
        if problem is None and bridge:
            missing = (name for name in _OF_BRIDGE if _size(path / name) is None)
            problem = next((_UNFINISHED.format(f"{name} is missing") for name in missing), None)
        last = path / _OF_BRIDGE[-1] if bridge else last
    if problem is not None:
        return FoundCheckpoint(iteration, None, problem)
    try:
        return FoundCheckpoint(iteration, timestamp(last.stat().st_mtime), None)
    except OSError as error:
        return FoundCheckpoint(iteration, None, str(unreadable(last, error)))


def _problem_of_metadata(path: Path) -> str | None:
    """Why the trainer would not take a checkpoint with this `metadata.json`."""
    try:
        value = _json_object(path)
    except FileNotFoundError:
        return _UNFINISHED.format(f"{path.name} is missing")
    except OSError as error:
        return str(unreadable(path, error))
    except WireError:
        return _UNFINISHED.format(f"{path.name} is damaged")
    return None if isinstance(value.get("sharded_backend"), str) else f"{path.name} names no sharded backend"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None

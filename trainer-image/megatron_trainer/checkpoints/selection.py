"""Selects the checkpoint to start from: the newest complete one.

Megatron writes shards, then `.metadata`, then `metadata.json`, then the tracker, none of them atomically. A
pod that dies in between leaves a directory that the loader trusts, or a tracker that makes Megatron exit with
code 0. So before every start the directories themselves are checked: an incomplete one is set aside with the
reason beside it, and the tracker is rewritten.
"""

import contextlib
import errno
import fcntl
import io
import os
import pickle
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from megatron_contract.wire import load_json

from megatron_trainer.errors import TrainerError
from megatron_trainer.flags import BRIDGE_FORMAT

TRACKER = "latest_checkpointed_iteration.txt"
# What the tracker has in place of an iteration where there are weights alone, and their folder.
RELEASE = "release"
REASON_FILE = "why-set-aside.txt"
# Number of checkpoints that were set aside and are kept for inspection: the newest.
BROKEN_KEPT = 2

# In the order in which they are written.
_OF_BRIDGE = ("train_state.pt", "run_config.yaml")

# The first that exists is what a save writes last of the shards; who reads a checkpoint locks it.
_METADATA = ("metadata.json", ".metadata")

# No file is there. Any other OSError may pass: it is no damage.
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_ITERATION_DIR = re.compile(r"iter_(\d{7,})")
_SET_ASIDE = re.compile(r"iter_(\d{7,})\.(broken|rolled-back)-(\d+)")


@dataclass(frozen=True)
class Choice:
    """The iteration to start from, None for the beginning, and the repairs that were made."""

    iteration: int | None
    repairs: list[str]


def directory(root: Path, iteration: int) -> Path:
    """Return Megatron's directory of one iteration's checkpoint."""
    return root / f"iter_{iteration:07d}"


def iterations(root: Path) -> list[int]:
    """Return the iterations with a checkpoint directory, newest first, complete or not."""
    if not root.is_dir():
        return []
    found = (_ITERATION_DIR.fullmatch(entry.name) for entry in root.iterdir() if entry.is_dir())
    return sorted((int(match[1]) for match in found if match), reverse=True)


class _Part:
    """Replaces every class that a checkpoint's metadata names: holds its fields and does nothing."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> "_Part":
        return object.__new__(cls)

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _FieldsOnly(pickle.Unpickler):
    """Reads a pickle without importing what it names.

    Importing torch.distributed.checkpoint takes seconds while all pods wait, and a file on a volume should
    not run code.
    """

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Part


def _read(file: Path) -> bytes:
    """Read a file. The OSError of a failed read does not name it by itself."""
    try:
        return file.read_bytes()
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def _shard_lengths(content: bytes) -> dict[str, int]:
    """Return the minimum bytes of each shard, by file name, from torch's checkpoint metadata."""
    metadata: Any = _FieldsOnly(io.BytesIO(content)).load()
    lengths: dict[str, int] = {}
    for info in metadata.storage_data.values():
        end = info.offset + info.length
        lengths[info.relative_path] = max(end, lengths.get(info.relative_path, 0))
    return lengths


def why_incomplete(path: Path, ckpt_format: str = "torch_dist") -> str | None:
    """Return why a checkpoint directory is incomplete, None if it is complete.

    Complete means: metadata readable, every shard that it names present and of full length. The legacy format
    `torch` has no metadata to compare with; there only empty files are detected. A complete checkpoint is
    remembered until its directory or its metadata changes, or `forget_complete` is called. Raises OSError if
    it cannot be read now, complete or not.
    """
    try:
        _require_complete(path, ckpt_format, _identity(path))
    except _IncompleteError as error:
        return str(error)
    return None


class _IncompleteError(TrainerError):
    """A checkpoint is incomplete. The text gives the reason."""


def _identity(path: Path) -> tuple[tuple[int, ...] | None, ...]:
    """What changes when a checkpoint is replaced: inode, size and times of its directory and metadata."""

    def stat(file: Path) -> tuple[int, ...] | None:
        try:
            found = file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    return stat(path), stat(path / "metadata.json"), stat(path / ".metadata")


# An incomplete checkpoint is not remembered, since what is raised is not: its shards may still grow.
@lru_cache(maxsize=64)
def _require_complete(path: Path, ckpt_format: str, _identity: object) -> None:
    if reason := _check(path, ckpt_format):
        raise _IncompleteError(reason)


def forget_complete() -> None:
    """Check every checkpoint again: one that was complete could not be loaded."""
    _require_complete.cache_clear()


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each file in a directory, which is read once."""
    sizes = {}
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                sizes[entry.name] = entry.stat().st_size
    return sizes


def _check(path: Path, ckpt_format: str) -> str | None:
    if ckpt_format == "torch":
        files = list(path.glob("mp_rank_*/*.pt"))
        if not files:
            return "no mp_rank_*/*.pt in it"
        return next((f"{file.name} is empty" for file in files if file.stat().st_size == 0), None)
    if ckpt_format in ("torch_dist", BRIDGE_FORMAT):
        try:
            metadata: Any = load_json(_read(path / "metadata.json"))
            backend = metadata["sharded_backend"]
        except _NO_FILE:
            return "metadata.json is missing: the save did not finish"
        except (ValueError, KeyError, TypeError) as error:
            return f"metadata.json cannot be read: {error}"
        if not isinstance(backend, str):
            return f"metadata.json names no sharded backend: {backend!r}"
    try:
        lengths = _shard_lengths(_read(path / ".metadata"))
    except _NO_FILE:
        return ".metadata is missing: the save did not finish"
    except OSError:
        raise
    except MemoryError as error:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path / ".metadata")) from error
    except Exception as error:  # a truncated pickle may raise anything
        return f".metadata cannot be read: {type(error).__name__}: {error}"
    sizes = _sizes(path)
    if ckpt_format == BRIDGE_FORMAT and (missing := [name for name in _OF_BRIDGE if name not in sizes]):
        return f"{missing[0]} is missing: the save did not finish"
    for name, length in sorted(lengths.items()):
        size = sizes.get(name)
        if size is None:
            return f"shard {name} is missing"
        if size < length:
            return f"shard {name} has {size} of {length} bytes"
    return None


def newest_complete(root: Path, ckpt_format: str = "torch_dist") -> int | None:
    """Return the newest iteration with a complete checkpoint. Changes nothing. Raises OSError."""
    for iteration in iterations(root):
        if why_incomplete(directory(root, iteration), ckpt_format) is None:
            return iteration
    return None


def newest_complete_iterations(root: Path, count: int, ckpt_format: str = "torch_dist") -> list[int]:
    """Return the newest `count` iterations with a complete checkpoint, newest first.

    Changes nothing. Raises OSError.
    """
    complete = (
        iteration
        for iteration in iterations(root)
        if why_incomplete(directory(root, iteration), ckpt_format) is None
    )
    return list(islice(complete, count))


def written_at(path: Path) -> float | None:
    """Return when the shards of a checkpoint directory were finished: the time of its metadata, Unix seconds.

    None for a directory without metadata.
    """
    for name in _METADATA:
        with contextlib.suppress(OSError):
            return (path / name).stat().st_mtime
    return None


def read_tracker(root: Path) -> str | None:
    """Return the text of Megatron's tracker, None if there is none."""
    try:
        return (root / TRACKER).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None


def _unguarded() -> None: ...


def _free_name(path: Path, what: str) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.{what}-{number}")).exists():
        number += 1
    return candidate


def _set_aside(path: Path, reason: str, what: str = "broken") -> Path:
    target = _free_name(path, what)
    path.rename(target)
    if target.is_dir():
        # A full volume has no space for the reason either.
        with contextlib.suppress(OSError):
            (target / REASON_FILE).write_text(reason + "\n")
    return target


def _write_tracker(root: Path, text: str) -> None:
    """Replace the tracker atomically."""
    temporary = root / f".{TRACKER}.{os.getpid()}"
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(root / TRACKER)


def choose(root: Path, ckpt_format: str = "torch_dist", guard: Callable[[], None] = _unguarded) -> Choice:
    """Find the newest complete checkpoint under `root`, set newer broken ones aside and repair the tracker.

    Older checkpoints are not checked until they become the newest. Call it only while no rank runs. `guard`
    is called before every change and raises if it is no longer allowed. Raises OSError.
    """
    repairs: list[str] = []
    chosen = None
    for iteration in iterations(root):
        path = directory(root, iteration)
        reason = why_incomplete(path, ckpt_format)
        if reason is None:
            chosen = iteration
            break
        guard()
        target = _set_aside(path, reason)
        repairs.append(f"checkpoint {path.name} is incomplete ({reason}): set aside as {target.name}")
    text = read_tracker(root)
    guard()
    if chosen is not None:
        if text != str(chosen):
            _write_tracker(root, str(chosen))
            repairs.append(f"{TRACKER} contained {text!r}: now {chosen}")
    elif text is not None and not (text == RELEASE and (root / RELEASE).is_dir()):
        target = _set_aside(root / TRACKER, "")
        repairs.append(
            f"{TRACKER} contained {text!r} but there is no complete checkpoint: set aside as {target.name}"
        )
    return Choice(chosen, repairs)


def roll_back(
    root: Path, start: int | None, newer: Sequence[int], cause: str, guard: Callable[[], None] = _unguarded
) -> list[str]:
    """Make the run start from `start`: set the checkpoints `newer` aside, because of `cause`.

    Returns what was done, for the log. Call it only while no rank runs; `guard` as for `choose`. Raises
    OSError.
    """
    done = []
    for iteration in newer:
        guard()
        path = directory(root, iteration)
        target = _set_aside(
            path, f"the run was rolled back to iteration {start or 0}: {cause}", "rolled-back"
        )
        done.append(
            f"checkpoint {path.name} is newer than iteration {start or 0}: set aside as {target.name}"
        )
    guard()
    if start is not None:
        _write_tracker(root, str(start))
    elif newer:
        (root / TRACKER).unlink(missing_ok=True)
    return done


def prune(
    root: Path,
    keep: int,
    ckpt_format: str = "torch_dist",
    log: Callable[[str], None] = print,
    guard: Callable[[], None] = _unguarded,
    also: int | None = None,
) -> None:
    """Delete all but the newest `keep` (at least one) complete checkpoints, and that of iteration `also`.

    An incomplete directory newer than those kept is left alone: a save may be in progress. So is one that a
    reader locks, by a shared flock on its metadata.json (.metadata if there is none): `flock -s
    iter_0000100/metadata.json cp -r iter_0000100 elsewhere`. `guard` as for `choose`.
    """
    kept = 0
    for iteration in iterations(root):
        path = directory(root, iteration)
        if kept >= max(keep, 1):
            if iteration == also:
                continue
            guard()
            _delete_unless_locked(path, f"{keep} newer complete ones are kept", log)
        elif why_incomplete(path, ckpt_format) is None:
            kept += 1
    prune_set_aside(root, BROKEN_KEPT, log)


@contextlib.contextmanager
def read_locked(path: Path) -> Iterator[None]:
    """Keep `prune` of any process from deleting the checkpoint in `path` meanwhile.

    Some volumes have no locks, and a checkpoint without metadata is none: then nothing is locked.
    """
    with contextlib.ExitStack() as stack:
        for name in _METADATA:
            with contextlib.suppress(OSError):
                fcntl.flock(stack.enter_context((path / name).open("rb")), fcntl.LOCK_SH)
                break
        yield


def prune_set_aside(root: Path, keep: int, log: Callable[[str], None]) -> None:
    """Delete all but the newest `keep` checkpoints set aside, and finish interrupted deletions."""
    aside = sorted(
        (entry for entry in root.iterdir() if _SET_ASIDE.fullmatch(entry.name)),
        key=lambda entry: entry.stat().st_mtime,
    )
    for path in aside[: len(aside) - keep]:
        _delete_unless_locked(path, f"{keep} set aside are kept", log)
    for leftover in root.glob(".deleting-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _delete_unless_locked(path: Path, why: str, log: Callable[[str], None]) -> None:
    """Delete a checkpoint, renamed first so that a partly deleted one is never taken for a checkpoint.

    One that cannot be deleted is kept, with the error in the log: others can be.
    """
    with contextlib.ExitStack() as stack:
        try:
            for name in _METADATA:
                with contextlib.suppress(FileNotFoundError):
                    file = stack.enter_context((path / name).open("r+b"))
                    if not _lock(file):
                        log(f"kept checkpoint {path.name}: a reader has locked it")
                        return
                    break
            doomed = path.with_name(f".deleting-{path.name}")
            path.rename(doomed)
        except OSError as error:
            log(f"kept checkpoint {path.name}, which cannot be deleted: {error}")
            return
        shutil.rmtree(doomed, ignore_errors=True)
    log(f"deleted checkpoint {path.name}: {why}")


def _lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed. False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A volume without flock: no reader can lock anything.
        pass
    return True

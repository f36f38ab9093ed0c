"""Removes from the data volume what runs no longer use: indexes, packed samples, and records of checks.

Each Job that prepares or checks data begins with this: a volume of the user's outlives its runs. An index is
of use until its run has started: rank 0 copies it, and finds the copy at each later start. Whether that has
happened is not known here, so an index stays for a while after it was built. For a run that starts after
that, rank 0 builds it, as without a Job. The same is true of packed samples, which are beside it.

The volume is the user's own: only files with the names of this project are removed, in its own folders, and
no link is followed. Folders are opened once, so that none can be replaced by a link meanwhile.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from megatron_contract.environment import DATA_DIR
from megatron_contract.preparation import CHECKED_FOLDER, INDEX_FOLDER, PREPARED_FOLDER

from megatron_trainer.data.checked_ids import LEFTOVER, RECORD, is_outdated
from megatron_trainer.data.log import log
from megatron_trainer.worker.prepared_index import (
    INDEX_FILE,
    PACKED_FILE,
    PACKED_FOLDER,
    UNFINISHED,
)

KEPT_DAYS: Final = 30
"""Days for which an index stays after it was built."""
_RUN: Final = re.compile(r"[a-z0-9][-a-z0-9.]*\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names of the folders of indexes: the name of a recipe and its UID."""
_FILE: Final = re.compile(f"{INDEX_FILE.pattern}|{PACKED_FILE.pattern}")
_LARGEST_RECORD: Final = 1 << 16
"""Bytes; a path has at most 4096."""


def remove_unused(volume: Path = Path(DATA_DIR)) -> None:
    """Remove what no run of a data volume uses any more. Errors are logged: no Job depends on it.

    A clock that is ahead costs a run its index, which rank 0 then builds.
    """
    cleaning = _Cleaning(volume, time.time() - KEPT_DAYS * 24 * 3600)
    cleaning.run()
    if cleaning.removed:
        what = "that were built long ago, or are of datasets that are gone or have changed"
        log(f"{volume}/{PREPARED_FOLDER}: removed {cleaning.removed} files of indexes and checks {what}")
    if cleaning.error is not None:
        log(f"{volume}/{PREPARED_FOLDER}: files that no run uses stay: {cleaning.error}")


class _Cleaning:
    """One pass over a volume. Other pods may clean and build in it at the same time."""

    def __init__(self, volume: Path, before: float) -> None:
        self._volume = volume
        self._before = before
        """Seconds since the epoch; indexes that were built earlier are removed."""
        self.removed = 0
        self.error: OSError | None = None
        """Why something was not removed."""

    def run(self) -> None:
        with self._noted(), _folder(self._volume) as root, _folder(PREPARED_FOLDER, root) as prepared:
            with self._noted(), _folder(Path(INDEX_FOLDER).name, prepared) as indexes:
                for name in filter(_RUN.fullmatch, _names(indexes)):
                    self._remove_index(name, indexes)
            with self._noted(), _folder(Path(CHECKED_FOLDER).name, prepared) as records:
                self._remove_records(records)

    def _remove_index(self, name: str, within: int) -> None:
        """Remove the old files of an index, and its folder if nothing else is in it."""
        before = self.removed
        with self._noted(), _folder(name, within) as folder:
            was_old = os.fstat(folder).st_mtime < self._before
            for each in _names(folder):
                if each.startswith(UNFINISHED) or PACKED_FOLDER.fullmatch(each):
                    self._remove_index(each, folder)
                elif _FILE.fullmatch(each) and self._is_old_file(each, folder):
                    self._remove(each, folder)
            # A new folder without files is one in which another pod is about to build.
            if (was_old or self.removed > before) and not _names(folder):
                os.rmdir(name, dir_fd=within)

    def _remove_records(self, records: int) -> None:
        """Remove records of files that are gone or have changed, and those that were not completed."""
        for name in _names(records):
            if LEFTOVER.fullmatch(name):
                outdated = self._is_old_file(name, records)
            else:
                outdated = bool(RECORD.fullmatch(name)) and is_outdated(
                    name, _content(name, records), self._volume
                )
            if outdated:
                self._remove(name, records)

    def _is_old_file(self, name: str, within: int) -> bool:
        with self._noted():
            found = os.stat(name, dir_fd=within, follow_symlinks=False)
            return stat.S_ISREG(found.st_mode) and found.st_mtime < self._before
        return False

    def _remove(self, name: str, within: int) -> None:
        with self._noted():
            os.unlink(name, dir_fd=within)
            self.removed += 1

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Note an error; not that of a link, or of what is not there or others have just changed."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY):
                self.error = self.error or error


@contextlib.contextmanager
def _folder(name: str | Path, within: int | None = None) -> Iterator[int]:
    """Open a folder. Raises OSError, also for a link unless it is the volume itself."""
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if within is None else os.O_NOFOLLOW)
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def _content(name: str, within: int) -> bytes:
    """The beginning of a file; nothing of a link or anything else."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return file.read(_LARGEST_RECORD) if regular else b""

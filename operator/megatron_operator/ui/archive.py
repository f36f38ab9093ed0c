"""The archive of a page: what it has seen of runs, in a file that outlives them and the page."""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from megatron_operator.ui import archive_reads, archive_writes
from megatron_operator.ui.archive_file import ArchiveFile, read_only
from megatron_operator.ui.archive_reads import ArchivedRun, ArchivePage
from megatron_operator.ui.archive_writes import Complete, Deleted, Entry, Observed
from megatron_operator.ui.history import RunHistory

Object = dict[str, Any]
WRITE_SECONDS: Final = 5.0
"""Seconds between two writes: a page that is killed loses so much, and reads the newest state again."""
SMALLEST: Final = 64 << 20
"""Bytes of the smallest archive: MAX_BYTES of a batch must fit beside what is kept."""
_BATCH: Final = 32
"""Entries of one transaction."""
_USED: Final = 0.8
"""Share of the size that rows may take; the rest is for the journal and the file system."""
_MAX_WAITING: Final = 1000
"""Entries that wait for a file that cannot be written; of more, each run's newest is kept."""
_logger = logging.getLogger(__name__)


class Archive:
    """Writes what is recorded every WRITE_SECONDS, and reads what the pages ask for. One per process."""

    def __init__(self, path: Path, cluster: str, size: int, now: Callable[[], float] = time.time) -> None:
        """Open or create the file; `size` is in bytes, `now` in Unix seconds. Raises ArchiveError.

        `cluster` names the cluster of the runs: one file may have those of several.
        """
        self.problem: str | None = None
        """Why what is seen cannot be written."""
        self._file = ArchiveFile(path)
        self._cluster = cluster
        self._limit = int(size * _USED)
        self._now = now
        self._waiting: list[Entry] = []
        self._writing = threading.Lock()

    def observe(self, recipe: Object) -> None:
        """A recipe as it is now."""
        self._waiting.append(Observed(self._now(), recipe))

    def delete(self, recipe: Object) -> None:
        """A recipe was deleted; it is its newest state too."""
        self._waiting.append(Observed(self._now(), recipe))
        self._waiting.append(Deleted(self._now(), str(recipe["metadata"]["uid"])))

    def complete(self, namespace: str | None, recipes: Sequence[Object]) -> None:
        """These are all recipes of a namespace, or of all (None)."""
        uids = frozenset(str(each["metadata"]["uid"]) for each in recipes)
        self._waiting.append(Complete(self._now(), namespace, uids))

    async def keep(self) -> None:
        """Write what is recorded until this is cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. A failure is in `problem`, and is tried again the next time."""
        waiting, self._waiting = self._waiting, []
        try:
            await asyncio.to_thread(self._write, waiting)
            self.problem = None
        except sqlite3.Error as error:
            self.problem = f"the archive {self._file.path} cannot be written: {error}"
            _logger.warning("%s", self.problem)
            self._waiting = waiting + self._waiting
            if len(self._waiting) > _MAX_WAITING:
                self._waiting = _newest(self._waiting)

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            self._file.close()

    async def history(self, recipe: Object) -> RunHistory:
        """What the file has of a run's past, or of a deleted run's."""
        uid = str(recipe["metadata"].get("uid"))
        return await self._read(lambda database: archive_reads.history_of(database, uid), RunHistory())

    async def run(self, namespace: str, name: str, uid: str = "") -> ArchivedRun | None:
        """A deleted run; of more than one with this name that of the UID, without a UID the newest."""
        return await self._read(
            lambda database: archive_reads.find_run(database, self._cluster, namespace, name, uid), None
        )

    async def runs(self, namespaces: Collection[str], text: str, first: int, count: int) -> ArchivePage:
        """`count` deleted runs from `first`, of these namespaces, whose `namespace/name` has a text."""
        return await self._read(
            lambda database: archive_reads.find_runs(database, self._cluster, namespaces, text, first, count),
            ArchivePage((), 0),
        )

    async def namespaces(self) -> list[str]:
        """Namespaces of deleted runs."""
        return await self._read(lambda database: archive_reads.namespaces_of(database, self._cluster), [])

    async def _read[T](self, query: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """The result of a query, or what is shown `otherwise`: the page goes on without its archive."""

        def read() -> T:
            with contextlib.closing(read_only(self._file.path)) as database:
                return query(database)

        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            self.problem = f"the archive {self._file.path} cannot be read: {error}"
            _logger.warning("%s", self.problem)
            return otherwise

    def _write(self, entries: Sequence[Entry]) -> None:
        with self._writing:
            for start in range(0, len(entries), _BATCH):
                self._write_batch(entries[start : start + _BATCH])

    def _write_batch(self, entries: Sequence[Entry]) -> None:
        """All of these entries in one transaction, or none. On a full disk a run is dropped for the next."""
        database = self._file.database
        try:
            with self._transaction():
                for entry in entries:
                    self._write_entry(entry)
                if dropped := archive_writes.drop_oldest(database, self._limit):
                    _logger.warning("the archive is full: dropped the oldest runs: %d", dropped)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                with self._transaction():
                    archive_writes.drop_one(database)
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        database = self._file.database
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            # SQLite may have rolled back already, for example where the disk is full.
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _write_entry(self, entry: Entry) -> None:
        """Write one entry, or log why its content cannot be stored. Raises sqlite3.Error for the file."""
        database = self._file.database
        database.execute("SAVEPOINT entry")
        try:
            archive_writes.write(database, self._cluster, entry)
        except Exception as error:  # Whatever one recipe has: the others are written.
            if isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError:
                raise
            database.execute("ROLLBACK TO entry")
            _logger.warning("not archived: %s: %s", _name(entry), error)
        database.execute("RELEASE entry")


def _newest(entries: Sequence[Entry]) -> list[Entry]:
    """The newest entry of each run and kind, in order."""
    kept: dict[tuple[str, str | None], Entry] = {}
    for entry in entries:
        key = type(entry).__name__, _name(entry)
        kept.pop(key, None)
        kept[key] = entry
    return list(kept.values())


def _name(entry: Entry) -> str | None:
    match entry:
        case Observed():
            return str(entry.recipe["metadata"].get("uid"))
        case Deleted():
            return entry.uid
        case Complete():
            return entry.namespace

"""The file of an archive of runs: its tables, and how it is opened and checked.

A rollback journal, not a write-ahead log: that needs memory shared between processes, which network file
systems do not have.
"""

import fcntl
import os
import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from megatron_operator.api.errors import OperatorError

SCHEMA: Final = 1
"""Version of the tables, PRAGMA user_version."""
APPLICATION: Final = 0x4D475241
"""PRAGMA application_id: `MGRA`."""
CHECK_SECONDS: Final = 10.0
"""Seconds for which a file is checked when it is opened; what a larger one has beyond that is not."""
BUSY_SECONDS: Final = 10.0
"""Seconds for which another program may hold the file's lock."""
_TABLES: Final = (
    """CREATE TABLE runs (
        uid TEXT PRIMARY KEY, cluster TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        created TEXT NOT NULL, generation INTEGER NOT NULL, seen REAL NOT NULL, deleted REAL, until REAL,
        recipe TEXT, phase TEXT NOT NULL, accelerators INTEGER, iteration INTEGER, train_iters INTEGER,
        lm_loss REAL, tokens_per_second REAL, spec TEXT NOT NULL, status TEXT NOT NULL, progress TEXT
    ) WITHOUT ROWID""",
    "CREATE INDEX runs_by_name ON runs (cluster, namespace, name)",
    "CREATE INDEX runs_by_deletion ON runs (cluster, deleted)",
    """CREATE TABLE points (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, iteration INTEGER NOT NULL, time REAL NOT NULL,
        lm_loss REAL, learning_rate REAL, tokens_per_second REAL, mfu REAL, PRIMARY KEY (uid, iteration)
    ) WITHOUT ROWID""",
    """CREATE TABLE phases (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, time REAL NOT NULL, phase TEXT NOT NULL,
        PRIMARY KEY (uid, time)
    ) WITHOUT ROWID""",
    """CREATE TABLE conditions (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, time TEXT NOT NULL, type TEXT NOT NULL,
        status TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
        PRIMARY KEY (uid, time, type, status, reason)
    ) WITHOUT ROWID""",
    """CREATE TABLE incidents (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, number INTEGER NOT NULL, time TEXT NOT NULL,
        kind TEXT NOT NULL, cause TEXT NOT NULL, node TEXT, iteration INTEGER, incident TEXT NOT NULL,
        PRIMARY KEY (uid, number)
    ) WITHOUT ROWID""",
    """CREATE TABLE checkpoints (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, iteration INTEGER NOT NULL, time TEXT,
        PRIMARY KEY (uid, iteration)
    ) WITHOUT ROWID""",
    """CREATE TABLE plans (
        uid TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, time REAL NOT NULL, plan TEXT NOT NULL,
        PRIMARY KEY (uid, time)
    ) WITHOUT ROWID""",
)


class ArchiveError(OperatorError):
    """The archive cannot be used; `fix` is what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message}; {fix}")
        self.message = message
        self.fix = fix


class ArchiveFile:
    """An open archive. One process at a time may have it open for writing; others may read."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises ArchiveError."""
        self.path = path
        try:
            self._lock = _lock(path)
        except OSError as error:
            fix = "name a file in a directory that exists and may be written"
            raise ArchiveError(f"cannot be opened: {error}", fix) from None
        try:
            self.database = _open(path)
        except ArchiveError:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close it."""
        self.database.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    """Descriptor of the locked file beside it. Raises OSError, ArchiveError where another process has it."""
    found = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(found)
        fix = "end that, or name another file"
        raise ArchiveError("is written by another megatron ui", fix) from None
    return found


def _open(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        fix = "name a file in a directory that exists and may be written"
        raise ArchiveError(f"cannot be opened: {error}", fix) from None
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA temp_store = MEMORY")
        _require_schema(database)
        _require_intact(database)
    except sqlite3.Error as error:
        database.close()
        fix = "move the file away, or restore it from a backup; without it the page begins a new archive"
        raise ArchiveError(f"cannot be read: {error}", fix) from None
    except ArchiveError:
        database.close()
        raise
    return database


def _require_schema(database: sqlite3.Connection) -> None:
    """Create the tables of a new file. Raises ArchiveError for a file of something else."""
    found = {
        name: int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("user_version", "application_id")
    }
    empty = not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if empty and not any(found.values()):
        # In one transaction: a process that is killed leaves all of it or nothing.
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {SCHEMA}")
        database.execute("COMMIT")
        return
    if found["application_id"] != APPLICATION:
        raise ArchiveError("is a database of another program", "name another file")
    if found["user_version"] != SCHEMA:
        version = found["user_version"]
        fix = "use the release that wrote it or a newer one, or name another file"
        raise ArchiveError(f"has tables of version {version}; this release reads {SCHEMA}", fix)


def _require_intact(database: sqlite3.Connection) -> None:
    """Check as much of the file as fits into CHECK_SECONDS. Raises ArchiveError."""
    end = time.monotonic() + CHECK_SECONDS
    database.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
    try:
        [result] = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        database.set_progress_handler(None, 0)
    if result != "ok":
        raise sqlite3.DatabaseError(" ".join(str(result).split()))


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file. Raises sqlite3.Error."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)

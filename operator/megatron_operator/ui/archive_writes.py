"""What a page has seen of runs -> rows of the archive."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.errors import OperatorError
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.lifecycle.status_reading import read_status
from megatron_operator.ui.points import MAX_SAMPLES, Point, point_of, thinned

Object = dict[str, Any]
MAX_BYTES: Final = 256 << 10
"""Bytes of spec and status together; a recipe with more is not archived."""
MAX_ROWS: Final = {"phases": 500, "conditions": 1000, "incidents": 1000, "checkpoints": 1000, "plans": 20}
"""Rows of one run; the oldest are dropped. Points: MAX_SAMPLES, thinned."""
_ORDER: Final = {"incidents": "number", "checkpoints": "iteration"}
"""Column that orders a table's rows; `time` in the others."""
_LAST_CHANGE: Final = (
    "max(coalesce((SELECT max(time) FROM phases WHERE phases.uid = runs.uid), 0),"
    " coalesce((SELECT time FROM points WHERE points.uid = runs.uid ORDER BY iteration DESC LIMIT 1), 0))"
)
"""When a run's phase or iteration changed last; `seen` of all runs is the time of the last list."""
_TOP: Final = (1 << 63) - 1
"""The largest integer of SQLite: a status may have larger ones."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A recipe as it was at a Unix time."""

    time: float
    recipe: Object


@dataclass(frozen=True, slots=True)
class Deleted:
    """A recipe was deleted at a Unix time."""

    time: float
    uid: str


@dataclass(frozen=True, slots=True)
class Complete:
    """All recipes that a namespace, or the cluster (None), had at a Unix time."""

    time: float
    namespace: str | None
    uids: frozenset[str]


Entry = Observed | Deleted | Complete


class RecipeTooLargeError(OperatorError):
    """A recipe has more than MAX_BYTES."""


def write(database: sqlite3.Connection, cluster: str, entry: Entry) -> None:
    """Write one entry. Raises sqlite3.Error, RecipeTooLargeError, ValueError for a recipe of another form."""
    match entry:
        case Observed():
            _observe(database, cluster, entry.time, entry.recipe)
        case Deleted():
            database.execute(
                "UPDATE runs SET deleted = :time, until = :time WHERE uid = :uid AND deleted IS NULL",
                {"time": entry.time, "uid": entry.uid},
            )
        case Complete():
            _complete(database, cluster, entry)


def drop_oldest(database: sqlite3.Connection, limit: int) -> int:
    """Delete whole runs while the rows take more than `limit` bytes; returns their number.

    First those that were deleted longest ago, then those whose state changed longest ago.
    """
    dropped = 0
    while _used(database) > limit and drop_one(database):
        dropped += 1
    return dropped


def drop_one(database: sqlite3.Connection) -> bool:
    """Delete the first run of that order; False where none is left."""
    oldest = database.execute(
        f"SELECT uid FROM runs ORDER BY deleted IS NULL, coalesce(deleted, {_LAST_CHANGE}) LIMIT 1"
    ).fetchone()
    if oldest is None:
        return False
    database.execute("DELETE FROM runs WHERE uid = ?", oldest)
    return True


def _used(database: sqlite3.Connection) -> int:
    """Bytes of pages that are not free."""
    pages, free, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _complete(database: sqlite3.Connection, cluster: str, entry: Complete) -> None:
    """Runs that are gone were deleted while nobody watched: after their newest state, at a time not known."""
    query = "SELECT uid FROM runs WHERE cluster = ? AND deleted IS NULL"
    arguments: list[str] = [cluster]
    if entry.namespace is not None:
        query += " AND namespace = ?"
        arguments.append(entry.namespace)
    gone = [uid for (uid,) in database.execute(query, arguments) if uid not in entry.uids]
    database.executemany(
        "UPDATE runs SET deleted = ?, until = seen WHERE uid = ?", [(entry.time, uid) for uid in gone]
    )


def _observe(database: sqlite3.Connection, cluster: str, time: float, recipe: Object) -> None:
    metadata, status = recipe["metadata"], read_status(recipe.get("status"))[0]
    uid = str(metadata["uid"])
    content = dict(recipe.get("status") or {})
    progress = content.pop("progress", None)
    spec_text, status_text = _json(recipe.get("spec") or {}), _json(content)
    if len(spec_text) + len(status_text) > MAX_BYTES:
        raise RecipeTooLargeError(f"its spec and status have more than {MAX_BYTES >> 10} KiB")
    known = database.execute("SELECT spec, status FROM runs WHERE uid = ?", (uid,)).fetchone()
    if known is None:
        database.execute(
            "INSERT INTO runs (uid, cluster, namespace, name, created, generation, seen, phase, spec, status)"
            " VALUES (?, ?, ?, ?, ?, 0, 0, '', '', '')",
            (uid, cluster, *(str(metadata.get(key)) for key in ("namespace", "name", "creationTimestamp"))),
        )
    database.execute(
        "UPDATE runs SET cluster = ?, generation = ?, seen = ?, deleted = NULL, until = NULL, iteration = ?,"
        " train_iters = ?, lm_loss = ?, tokens_per_second = ?, progress = ? WHERE uid = ?",
        (cluster, _integer(metadata.get("generation") or 0), time, *_newest(status), _json(progress), uid),
    )
    if known != (spec_text, status_text):
        accelerators = None if status.plan is None else _integer(status.plan.world_size)
        name = (recipe.get("spec") or {}).get("recipe")
        database.execute(
            "UPDATE runs SET spec = ?, status = ?, recipe = ?, phase = ?, accelerators = ? WHERE uid = ?",
            (spec_text, status_text, name and str(name), status.phase or "", accelerators, uid),
        )
        _changes(database, uid, time, status)
    if status.progress is not None and (point := point_of(status.progress, status.plan)) is not None:
        _add_point(database, uid, time, point)


def _newest(status: MegatronRecipeStatus) -> tuple[int | None, int | None, float | None, float | None]:
    progress = status.progress
    if progress is None:
        return None, None, None, None
    return (
        _integer(progress.iteration),
        _integer(progress.train_iters),
        progress.lm_loss,
        progress.tokens_per_second,
    )


def _changes(database: sqlite3.Connection, uid: str, time: float, status: MegatronRecipeStatus) -> None:
    """Rows for what has changed since the rows that are there."""
    _add_if_new(database, "phases", uid, time, status.phase)
    _add_if_new(database, "plans", uid, time, None if status.plan is None else _json(status.plan.wire()))
    database.executemany(
        "INSERT OR REPLACE INTO conditions VALUES (?, ?, ?, ?, ?, ?)",
        [
            (uid, each.last_transition_time, each.type, each.status, each.reason, each.message)
            for each in status.conditions
        ],
    )
    incidents = [] if status.recovery is None else status.recovery.history
    database.executemany(
        "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                uid, _integer(each.number), each.time, each.kind, each.cause, each.node,
                _integer(each.iteration), _json(each.wire()),
            )
            for each in incidents
        ],
    )  # fmt: skip
    if status.checkpoint is not None and status.checkpoint.iteration is not None:
        database.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)",
            (uid, _integer(status.checkpoint.iteration), status.checkpoint.time),
        )
    for table, most in MAX_ROWS.items():
        column = _ORDER.get(table, "time")
        database.execute(
            f"DELETE FROM {table} WHERE uid = :uid AND {column} <"
            f" (SELECT {column} FROM {table} WHERE uid = :uid ORDER BY {column} DESC LIMIT 1 OFFSET :kept)",
            {"uid": uid, "kept": most - 1},
        )


def _add_if_new(database: sqlite3.Connection, table: str, uid: str, time: float, value: str | None) -> None:
    """A row of `phases` or `plans`, unless the newest one has this value."""
    column = table.removesuffix("s")
    newest = database.execute(
        f"SELECT {column} FROM {table} WHERE uid = ? ORDER BY time DESC LIMIT 1", (uid,)
    ).fetchone()
    if value is not None and newest != (value,):
        database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (uid, time, value))


def _add_point(database: sqlite3.Connection, uid: str, time: float, point: Point) -> None:
    """Append a point; one of an iteration that is repeated replaces it and all after it."""
    iteration = _integer(point.iteration)
    [last] = database.execute("SELECT max(iteration) FROM points WHERE uid = ?", (uid,)).fetchone()
    if last == iteration:
        return
    database.execute("DELETE FROM points WHERE uid = ? AND iteration >= ?", (uid, iteration))
    row = (point.lm_loss, point.learning_rate, point.tokens_per_second, point.mfu)
    database.execute("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?)", (uid, iteration, time, *row))
    [count] = database.execute("SELECT count(*) FROM points WHERE uid = ?", (uid,)).fetchone()
    if count > MAX_SAMPLES:
        kept = {each.iteration for each in thinned(points_of(database, uid))}
        gone = [
            (uid, each)
            for (each,) in database.execute("SELECT iteration FROM points WHERE uid = ?", (uid,))
            if each not in kept
        ]
        database.executemany("DELETE FROM points WHERE uid = ? AND iteration = ?", gone)


def points_of(database: sqlite3.Connection, uid: str) -> Sequence[Point]:
    """The points of a run, in order of iterations."""
    rows = database.execute(
        "SELECT iteration, lm_loss, learning_rate, tokens_per_second, mfu FROM points WHERE uid = ?"
        " ORDER BY iteration",
        (uid,),
    )
    return [Point(*row) for row in rows]


def _json(value: Any) -> str:
    """Raises ValueError for what is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(value: int | None) -> int | None:
    return None if value is None else max(-_TOP, min(_TOP, int(value)))

"""Rows of the archive -> runs and their past."""

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.times import timestamp
from megatron_operator.ui.archive_writes import points_of
from megatron_operator.ui.history import RunHistory

Object = dict[str, Any]
_COLUMNS = "uid, namespace, name, created, generation, seen, deleted, until, spec, status, progress"


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run that was deleted. Times are in Unix seconds."""

    recipe: Object
    """As it was at its newest state."""
    seen: float
    """When that was."""
    deleted: float
    """When the page noticed the deletion."""
    until: float
    """Up to when the run is known to have existed."""


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """Some of the deleted runs, those that were deleted last first."""

    runs: tuple[ArchivedRun, ...]
    total: int
    """Number of runs on all pages."""


def find_run(
    database: sqlite3.Connection, cluster: str, namespace: str, name: str, uid: str
) -> ArchivedRun | None:
    """A deleted run; of more than one with this name that of the UID, without a UID the newest."""
    row = database.execute(
        f"SELECT {_COLUMNS} FROM runs WHERE cluster = ? AND namespace = ? AND name = ? AND ? IN ('', uid)"
        " AND deleted IS NOT NULL ORDER BY created DESC, deleted DESC LIMIT 1",
        (cluster, namespace, name, uid),
    ).fetchone()
    return None if row is None else _run(row)


def find_runs(
    database: sqlite3.Connection,
    cluster: str,
    namespaces: Collection[str],
    text: str,
    first: int,
    count: int,
) -> ArchivePage:
    """Deleted runs of these namespaces whose `namespace/name` has a text; `count` of them from `first`."""
    places = ", ".join("?" * len(namespaces))
    where = (
        f"FROM runs WHERE cluster = ? AND deleted IS NOT NULL AND namespace IN ({places})"
        " AND instr(lower(namespace || '/' || name), lower(?))"
    )
    arguments = (cluster, *namespaces, text)
    [total] = database.execute(f"SELECT count(*) {where}", arguments).fetchone()
    rows = database.execute(
        f"SELECT {_COLUMNS} {where} ORDER BY deleted DESC, uid LIMIT ? OFFSET ?", (*arguments, count, first)
    )
    return ArchivePage(tuple(map(_run, rows)), total)


def namespaces_of(database: sqlite3.Connection, cluster: str) -> list[str]:
    """Namespaces of deleted runs."""
    rows = database.execute(
        "SELECT DISTINCT namespace FROM runs WHERE cluster = ? AND deleted IS NOT NULL ORDER BY namespace",
        (cluster,),
    )
    return [name for (name,) in rows]


def history_of(database: sqlite3.Connection, uid: str) -> RunHistory:
    """The past of a run."""

    def rows(columns: str, table: str, order: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {table} WHERE uid = ? ORDER BY {order}"
        return database.execute(query, (uid,)).fetchall()

    names = ("lastTransitionTime", "type", "status", "reason", "message")
    return RunHistory(
        tuple(points_of(database, uid)),
        tuple(json.loads(text) for (text,) in rows("incident", "incidents", "number")),
        tuple(
            dict(zip(names, row, strict=True))
            for row in rows("time, type, status, reason, message", "conditions", "time")
        ),
        tuple((timestamp(time), phase) for time, phase in rows("time, phase", "phases", "time")),
        tuple(rows("iteration, time", "checkpoints", "iteration")),
    )


def _run(row: tuple[Any, ...]) -> ArchivedRun:
    uid, namespace, name, created, generation, seen, deleted, until, spec, status, progress = row
    content = json.loads(status)
    if progress is not None and (known := json.loads(progress)) is not None:
        content["progress"] = known
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "creationTimestamp": created,
        "generation": generation,
    }
    recipe = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": json.loads(spec),
        "status": content,
    }
    return ArchivedRun(recipe, seen, deleted, until)

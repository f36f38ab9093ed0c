"""Files that the archive cannot use, and who may write one."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.ui.archive import SMALLEST, Archive
from megatron_operator.ui.archive_file import SCHEMA, ArchiveError

from testkit.example_runs import training_run

CLUSTER = "https://cluster.example"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def archive(path: Path) -> Iterator[Archive]:
    found = Archive(path, CLUSTER, SMALLEST)
    yield found
    found.close()


def test_two_processes_cannot_write_one_archive(archive: Archive, path: Path) -> None:  # noqa: ARG001
    with pytest.raises(ArchiveError, match="is written by another megatron ui; end that, or name another"):
        Archive(path, CLUSTER, SMALLEST)


def test_a_lock_is_free_once_its_holder_has_closed_the_archive(path: Path) -> None:
    for _ in range(2):
        Archive(path, CLUSTER, SMALLEST).close()


def corrupt(path: Path) -> None:
    Archive(path, CLUSTER, SMALLEST).close()
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


def truncated(path: Path) -> None:
    Archive(path, CLUSTER, SMALLEST).close()
    path.write_bytes(path.read_bytes()[:6000])


def text(path: Path) -> None:
    path.write_text("not a database\n" * 1000)


def other_program(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")


def newer(path: Path) -> None:
    Archive(path, CLUSTER, SMALLEST).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA + 1}")


def directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (corrupt, "cannot be read: .*; move the file away, or restore it"),
        (truncated, "cannot be read: .*malformed.*; move the file away"),
        (text, "cannot be read: file is not a database; move the file away"),
        (other_program, "is a database of another program; name another file"),
        (newer, f"has tables of version {SCHEMA + 1}; this release reads {SCHEMA}; use the release"),
        (directory, "cannot be opened: unable to open database file; name a file in a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_fix_and_stays_as_it_is(
    path: Path, damage: Any, message: str
) -> None:
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    for _ in range(2):
        with pytest.raises(ArchiveError, match=message):
            Archive(path, CLUSTER, SMALLEST)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ArchiveError, match=r"No such file or directory.*name a file in a directory that exists"
    ):
        Archive(tmp_path / "missing" / "runs.sqlite", CLUSTER, SMALLEST)


async def test_damage_while_the_page_runs_is_reported_and_costs_only_the_archive(
    archive: Archive, path: Path
) -> None:
    archive.observe(training_run("run"))
    await archive.flush()
    path.write_bytes(b"x" * path.stat().st_size)
    assert await archive.run("research", "run") is None
    assert archive.problem is not None
    assert "cannot be read: file is not a database" in archive.problem

"""What the archive keeps, and its bounds."""

import copy
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from megatron_operator.ui import archive_writes, points
from megatron_operator.ui.archive import SMALLEST, Archive

from testkit.example_runs import training_run

Object = dict[str, Any]
CLUSTER = "https://cluster.example"
START = 1_767_225_600.0


class Clock:
    """Advances by a second with each reading."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def archive(path: Path) -> Iterator[Archive]:
    found = Archive(path, CLUSTER, SMALLEST, Clock())
    yield found
    found.close()


def at(recipe: Object, iteration: int, loss: float = 2.0) -> Object:
    """The recipe at an iteration."""
    changed = copy.deepcopy(recipe)
    changed["status"]["progress"] |= {"iteration": iteration, "lmLoss": loss}
    return changed


def rows(path: Path, query: str) -> list[Any]:
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


async def test_a_deleted_run_keeps_its_spec_status_course_and_time_of_deletion(archive: Archive) -> None:
    recipe = training_run("run")
    for iteration in (100, 200, 300):
        archive.observe(at(recipe, iteration, 3.0 - iteration / 1000))
    assert await archive.run("research", "run") is None, "it exists"
    archive.delete(at(recipe, 300, 2.7))
    await archive.flush()
    found = await archive.run("research", "run")
    assert found is not None
    assert found.recipe["spec"] == recipe["spec"]
    assert found.recipe["status"] == at(recipe, 300, 2.7)["status"]
    assert found.recipe["metadata"] == recipe["metadata"]
    assert found.until == found.deleted > found.seen > START
    history = await archive.history(found.recipe)
    assert [(each.iteration, each.lm_loss) for each in history.points] == [(100, 2.9), (200, 2.8), (300, 2.7)]
    assert history.points[0].mfu == pytest.approx(
        0.94 * recipe["status"]["plan"]["expected"]["mfu"], rel=0.01
    )


async def test_a_repeated_iteration_replaces_what_follows(archive: Archive) -> None:
    recipe = training_run("run")
    for iteration in (10, 20, 30, 20):
        archive.observe(at(recipe, iteration))
        await archive.flush()
    assert [each.iteration for each in (await archive.history(recipe)).points] == [10, 20]


async def test_phases_conditions_incidents_checkpoints_and_plans_are_kept_beyond_what_the_status_keeps(
    archive: Archive, path: Path
) -> None:
    recipe = training_run("run")
    status = recipe["status"]
    incident = status["recovery"]["history"][0]
    for number in range(1, 31):
        changed = copy.deepcopy(recipe)
        changed["status"]["recovery"]["history"] = [
            incident | {"number": each} for each in range(max(1, number - 19), number + 1)
        ]
        changed["status"]["phase"] = "Recovering" if number % 2 else "Training"
        changed["status"]["checkpoint"]["iteration"] = 100 * number
        changed["status"]["conditions"][2] |= {
            "status": "False" if number % 2 else "True",
            "lastTransitionTime": f"2026-01-01T09:00:{number:02}Z",
        }
        changed["status"]["plan"]["worldSize"] = 64 if number < 20 else 56
        archive.observe(changed)
    await archive.flush()
    history = await archive.history(recipe)
    assert [each["number"] for each in history.incidents] == list(range(1, 31))
    assert [phase for _, phase in history.phases] == ["Recovering", "Training"] * 15
    assert [iteration for iteration, _ in history.checkpoints] == [100 * each for each in range(1, 31)]
    assert len([each for each in history.conditions if each["type"] == "Running"]) == 30
    assert [json.loads(plan)["worldSize"] for (plan,) in rows(path, "SELECT plan FROM plans")] == [64, 56]


async def test_a_run_that_went_while_nobody_watched_is_known_until_its_newest_state(archive: Archive) -> None:
    here, there = training_run("here"), training_run("there", "teaching")
    gone, kept = training_run("gone"), training_run("kept", "teaching")
    for each in (here, there, gone, kept):
        archive.observe(each)
    archive.complete("research", [here])
    await archive.flush()
    found = await archive.run("research", "gone")
    assert found is not None
    assert found.until == found.seen < found.deleted
    assert await archive.run("research", "here") is None
    assert await archive.run("teaching", "kept") is None, "that namespace was not listed"
    archive.observe(gone)
    await archive.flush()
    assert await archive.run("research", "gone") is None, "it is there again"


async def test_runs_of_another_cluster_in_the_same_file_are_not_taken_for_deleted_ones(path: Path) -> None:
    first = Archive(path, CLUSTER, SMALLEST, Clock())
    first.observe(training_run("run"))
    await first.flush()
    first.close()
    other = Archive(path, "https://other.example", SMALLEST, Clock())
    other.complete(None, [])
    await other.flush()
    assert (await other.runs(["research"], "", 0, 10)).total == 0
    other.close()
    assert rows(path, "SELECT count(*) FROM runs WHERE deleted IS NULL") == [(1,)]


async def test_deleted_runs_of_one_name_differ_by_uid_and_the_newest_is_first(
    archive: Archive,
) -> None:
    for number, created in enumerate(("2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z"), 1):
        recipe = training_run("run")
        recipe["metadata"] |= {"uid": f"u{number}", "creationTimestamp": created}
        archive.delete(recipe)
    await archive.flush()
    newest, older = await archive.run("research", "run"), await archive.run("research", "run", "u1")
    assert newest is not None
    assert older is not None
    assert [each.recipe["metadata"]["uid"] for each in (newest, older)] == ["u2", "u1"]
    assert await archive.run("research", "run", "u3") is None
    page = await archive.runs(["research"], "RUN", 0, 1)
    assert (page.total, page.runs[0].recipe["metadata"]["uid"]) == (2, "u2")
    assert (await archive.runs(["research"], "other", 0, 1)).total == 0
    assert (await archive.runs(["teaching"], "", 0, 1)).total == 0


async def test_points_of_a_run_are_bounded_and_cover_all_of_it(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archive_writes, points):
        monkeypatch.setattr(module, "MAX_SAMPLES", 40)
    recipe = training_run("run")
    last = 200
    for iteration in range(1, last + 1):
        archive.observe(at(recipe, iteration, 9.0 if iteration == 30 else 2.0))
    await archive.flush()
    found = (await archive.history(recipe)).points
    assert 10 < len(found) <= 40
    iterations = [each.iteration for each in found]
    assert (iterations[0], iterations[-1]) == (1, last)
    assert max(after - before for before, after in pairwise(iterations)) <= last // 4
    assert max(found, key=lambda each: each.lm_loss or 0.0).iteration == 30


@pytest.mark.parametrize(("table", "most"), archive_writes.MAX_ROWS.items())
async def test_other_rows_of_a_run_are_bounded_and_the_newest_are_kept(
    archive: Archive, path: Path, monkeypatch: pytest.MonkeyPatch, table: str, most: int
) -> None:
    assert most >= 20
    monkeypatch.setattr(archive_writes, "MAX_ROWS", {table: 5})
    recipe = training_run("run")
    incident = recipe["status"]["recovery"]["history"][0]
    for number in range(1, 13):
        status = copy.deepcopy(recipe["status"]) | {"phase": f"P{number}"}
        status["recovery"]["history"] = [incident | {"number": number}]
        status["checkpoint"]["iteration"] = number
        status["conditions"] = [
            status["conditions"][0] | {"lastTransitionTime": f"2026-01-01T09:00:{number:02}Z"}
        ]
        status["plan"]["notes"] = [f"{number}"]
        archive.observe(recipe | {"status": status})
    await archive.flush()
    newest = {
        "phases": "max(phase = 'P12')", "conditions": "max(time = '2026-01-01T09:00:12Z')",
        "incidents": "max(number) = 12", "checkpoints": "max(iteration) = 12",
        "plans": "max(json_extract(plan, '$.notes[0]') = '12')",
    }  # fmt: skip
    assert rows(path, f"SELECT count(*), {newest[table]} FROM {table}") == [(5, 1)]


async def test_beyond_its_size_the_runs_that_were_deleted_longest_ago_are_dropped(path: Path) -> None:
    size = 2 << 20
    archive = Archive(path, CLUSTER, size, Clock())
    archive.observe(training_run("living"))
    for number in range(120):
        recipe = training_run(f"run-{number}")
        recipe |= {"spec": {"padding": "x" * 25_000}, "status": {"phase": "Succeeded"}}
        archive.delete(recipe)
    await archive.flush()
    kept = (await archive.runs(["research"], "", 0, 400)).runs
    archive.close()
    assert path.stat().st_size <= size
    names = [each.recipe["metadata"]["name"] for each in kept]
    assert names == [f"run-{number}" for number in range(119, 119 - len(names), -1)]
    assert 30 < len(names) < 120
    assert rows(path, "SELECT count(*) FROM runs WHERE name = 'living'") == [(1,)]
    assert rows(path, "SELECT count(*) FROM phases WHERE uid NOT IN (SELECT uid FROM runs)") == [(0,)]


async def test_of_runs_that_exist_those_go_first_that_changed_longest_ago(path: Path) -> None:
    archive = Archive(path, CLUSTER, 64 << 20, Clock())
    for name in ("z-old", "a-new"):
        archive.observe(training_run(name))
        await archive.flush()
    for name in ("a-new", "z-old"):  # a list of all recipes
        archive.observe(training_run(name))
    await archive.flush()
    assert archive_writes.drop_one(archive._file.database)
    archive.close()
    assert rows(path, "SELECT name FROM runs") == [("a-new",)]


async def test_on_a_full_disk_the_oldest_runs_make_room(path: Path) -> None:
    archive = Archive(path, CLUSTER, 64 << 20, Clock())
    for number in range(20):
        recipe = training_run(f"run-{number}")
        archive.delete(recipe | {"spec": {"padding": "x" * 100_000}})
        await archive.flush()
    [(pages,)] = archive._file.database.execute("PRAGMA page_count")
    archive._file.database.execute(f"PRAGMA max_page_count = {pages}")
    archive.observe(training_run("new") | {"spec": {"padding": "x" * 150_000}})
    await archive.flush()
    assert "full" in (archive.problem or "")
    for _ in range(3):
        await archive.flush()
    assert archive.problem is None
    archive.close()
    kept = {name for (name,) in rows(path, "SELECT name FROM runs")}
    assert "new" in kept
    assert "run-0" not in kept
    assert "run-19" in kept


async def test_a_run_stays_known_where_the_address_of_its_cluster_changes(path: Path) -> None:
    recipe, before = training_run("run"), Archive(path, "https://old:6443", 64 << 20, Clock())
    before.observe(recipe)
    await before.flush()
    before.close()
    after = Archive(path, "https://new:6443", 64 << 20, Clock())
    after.observe(at(recipe, 20))
    after.delete(at(recipe, 20))
    await after.flush()
    found = await after.run("research", "run")
    after.close()
    assert found is not None


async def test_a_recipe_that_cannot_be_stored_costs_only_itself(archive: Archive) -> None:
    large, broken, strange = training_run("large"), training_run("broken"), training_run("strange")
    large["spec"]["padding"] = "x" * archive_writes.MAX_BYTES
    del broken["metadata"]["uid"]
    strange["spec"]["name"] = "\ud800"
    huge = at(training_run("huge"), 1 << 70)
    for each in (large, broken, strange, huge, training_run("fine")):
        archive.observe(each)
    archive.complete(None, [])
    await archive.flush()
    assert archive.problem is None
    names = [each.recipe["metadata"]["name"] for each in (await archive.runs(["research"], "", 0, 9)).runs]
    assert sorted(names) == ["fine", "huge"]


async def test_what_cannot_be_written_is_written_once_it_can_be(archive: Archive, path: Path) -> None:
    recipe = training_run("run")
    with sqlite3.connect(path, isolation_level=None) as other:
        archive._file.database.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        archive.observe(at(recipe, 10))
        await archive.flush()
        assert archive.problem == f"the archive {path} cannot be written: database is locked"
        for _ in range(1001):
            archive.observe(recipe)
        archive.observe(at(recipe, 1999))
        await archive.flush()
        archive.delete(at(recipe, 2000))
        other.execute("COMMIT")
    await archive.flush()
    assert archive.problem is None
    found = await archive.run("research", "run")
    assert found is not None
    assert found.recipe["status"]["progress"]["iteration"] == 2000


KILLED = """
import asyncio, sys
from pathlib import Path
from megatron_operator.ui.archive import SMALLEST, Archive
from testkit.example_runs import training_run
async def main():
    archive = Archive(Path(sys.argv[1]), "c", SMALLEST)
    recipe = training_run("run")
    print("started", flush=True)
    for number in range(1, 100_000):
        recipe["status"]["phase"] = f"P{number}"
        recipe["status"]["progress"]["iteration"] = number
        recipe["status"]["checkpoint"]["iteration"] = number
        archive.observe(recipe)
        await archive.flush()
        print(number, flush=True)
asyncio.run(main())
"""


async def test_a_process_that_is_killed_leaves_whole_transactions_and_the_next_one_goes_on(
    path: Path,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    written = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    archive = Archive(path, "c", SMALLEST)
    history = await archive.history(training_run("run"))
    newest = history.points[-1].iteration
    assert newest >= written
    assert history.phases[-1][1] == f"P{newest}"
    assert history.checkpoints[-1][0] == newest
    archive.delete(training_run("run"))
    await archive.flush()
    assert await archive.run("research", "run") is not None
    archive.close()

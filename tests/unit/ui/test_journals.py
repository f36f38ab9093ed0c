"""Journals in checkpoint directories, which the trainer's own writers have written."""

import ast
import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.environment import JOURNAL_FILE, PROGRESS_FILE
from megatron_operator.ui import journals
from megatron_operator.ui.journal_files import (
    JournalError,
    read_journal,
)
from megatron_operator.ui.journal_progress import ProgressReader
from megatron_operator.ui.journal_views import checkpoints, events, facts, incident_note
from megatron_operator.ui.journals import JournalCourse, JournalRun, Journals
from megatron_operator.ui.points import MAX_SAMPLES
from megatron_trainer.telemetry.incidents import FailureKind, FailureReport
from megatron_trainer.telemetry.run_journal import RunJournal

from testkit.example_journals import (
    EXAMPLE,
    STEP_SECONDS,
    TOKENS,
    UID,
    Start,
    write_run,
)

HOOKS = Path(__file__).parents[3] / "trainer-image" / "megatron_trainer" / "worker" / "megatron_hooks.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("volume") / "llama3-8b")


@pytest.fixture
def save(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "checkpoints" / "llama3-8b"))


def read(save: Path) -> tuple[JournalRun, JournalCourse]:
    found = Journals([save])
    [run] = asyncio.run(found.runs("", 0, 10)).runs
    course = asyncio.run(found.course(run))
    assert course is not None
    return run, course


def whole(path: Path) -> ProgressReader:
    reader = ProgressReader(path)
    reader.advance(60.0)
    assert reader.complete
    return reader


def test_the_example_has_the_fields_that_a_rank_writes(written: Path) -> None:
    tree = ast.parse(HOOKS.read_text())
    [fields] = [
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "_PROGRESS_FIELDS"
    ]
    with (written / PROGRESS_FILE).open() as file:
        assert set(json.loads(file.readline())) == {*fields, "generation", "time"}


def test_a_journal_has_the_course_of_the_run_without_the_iterations_that_were_discarded(
    written: Path,
) -> None:
    run, course = read(written)
    iterations = [each.iteration for each in course.points]
    assert iterations == sorted(set(iterations))
    assert iterations[-1] == 6000
    assert 500 < len(iterations) <= MAX_SAMPLES
    assert course.points[-1].tokens_per_second == pytest.approx(TOKENS / STEP_SECONDS, rel=0.02)
    assert course.points[-1].learning_rate == pytest.approx(3e-4)
    assert course.repeated == 230 + 460 + 180
    assert course.useful_seconds == pytest.approx(6000 * STEP_SECONDS, rel=0.001)
    assert run.last is not None
    assert run.until == run.last.time


def test_useful_seconds_are_those_that_the_trainer_counts(written: Path) -> None:
    counted = RunJournal(written, log=lambda _text: None).summary().useful_seconds
    assert whole(written / PROGRESS_FILE).useful_seconds() == pytest.approx(counted, abs=0.01)


def test_incidents_have_their_place_and_the_seconds_of_their_phases(written: Path) -> None:
    run, _ = read(written)
    history = run.recipe["status"]["recovery"]["history"]
    assert [each["kind"] for each in history] == ["rank", "hang", "pod"]
    hang = history[1]
    assert (hang["pod"], hang["rank"], hang["iteration"], hang["resumedFrom"]) == ("node 1", 3, 2460, 2000)
    assert hang["lostIterations"] == 460
    assert hang["seconds"]["detect"] == pytest.approx(99.0, abs=0.1)
    assert hang["seconds"]["start"] == pytest.approx(25.0, abs=0.1)
    assert hang["seconds"]["load"] == pytest.approx(12.0 + STEP_SECONDS, abs=0.1)
    assert hang["seconds"]["redo"] == pytest.approx(460 * STEP_SECONDS, rel=0.01)


def test_the_timeline_has_each_phase_of_an_incident_and_each_start(written: Path) -> None:
    found = events(*read(written))
    texts = [f"{reason} {message}" for _, reason, message in found]
    assert texts[0] == "LastIteration iteration 6,000"
    assert texts[-1] == "Started "
    assert "Resumed incident 2: iteration 2,001 after 2,460; 460 to repeat" in texts
    of_hang = [each.split(" ", 1)[0] for each in reversed(texts) if "incident 2" in each]
    assert of_hang == ["HangFound", "Rendezvous", "Loaded", "Resumed", "CaughtUp"]
    times = [time for time, _, _ in found]
    assert times == sorted(times, reverse=True)


def test_restarts_beyond_those_that_the_journal_keeps_are_counted_and_reported(tmp_path: Path) -> None:
    starts = [Start(1, 10), *(Start(n * 10 + 1, n * 10 + 10, FailureKind.POD, "gone") for n in range(1, 13))]
    run, course = read(write_run(tmp_path / "a", starts))
    assert len(run.recipe["status"]["recovery"]["history"]) == 8
    assert dict(facts(run, course))["Restarts"] == "12"
    assert "restarted 12 times; the journal keeps the newest 8" in str(incident_note(run))
    assert sum(reason == "Resumed" for _, reason, _ in events(run, course)) == 12


def test_a_run_that_was_never_interrupted_has_no_note(tmp_path: Path) -> None:
    assert incident_note(read(write_run(tmp_path / "a", [Start(1, 20)]))[0]) is None


def test_why_the_master_pod_ended_is_shown_until_another_start(save: Path) -> None:
    assert read_journal(save).pending is None
    journal = RunJournal(save, log=lambda _text: None)
    journal.set_pending(FailureReport(FailureKind.STOP, "stopped by SIGTERM\x1b[2J", 0))
    assert read_journal(save).pending == "stopped by SIGTERM\ufffd[2J"
    journal.start_generation(9, None, 6000, None, 0.0)
    assert read_journal(save).pending is None


def test_the_uid_of_the_recipe_is_that_of_the_lease(save: Path) -> None:
    assert read_journal(save).recipe_uid == UID
    (save / "owner.json").write_text("[]")
    assert read_journal(save).recipe_uid is None


def test_missing_and_damaged_journals_keep_what_progress_has(save: Path) -> None:
    journal = save / JOURNAL_FILE
    damages: tuple[tuple[str | None, str], ...] = (
        (None, "is missing, so incidents are not known"),
        ('{"schema": 1, "incid', "is damaged (not JSON"),
        ("[]", "is damaged (not a JSON object)"),
        ('{"incidents": [{"generation": 1}]}', "missing detectedAt"),
        ('{"schema": 2, "incidents": {}}', "has format 2, this release reads 1"),
        (json.dumps({"cause": "x" * (2 << 20)}), "is damaged (more than 1024 KiB)"),
    )
    for text, message in damages:
        journal.unlink(missing_ok=True)
        if text is not None:
            journal.write_text(text)
        [run] = asyncio.run(Journals([save]).runs("", 0, 10)).runs
        [problem] = run.problems
        assert str(journal) in problem
        assert message in problem
    assert read(save)[1].points[-1].iteration == 6000


def test_a_journal_without_progress_has_its_incidents(save: Path) -> None:
    (save / PROGRESS_FILE).unlink()
    run, course = read(save)
    assert len(run.recipe["status"]["recovery"]["history"]) == len(EXAMPLE) - 1
    assert course.points == ()
    assert f"{save / PROGRESS_FILE} has no iteration, or is missing" in run.problems[0]
    known = dict(facts(run, course))
    assert known["Restarts"] == "3"
    assert "Goodput" not in known
    (save / JOURNAL_FILE).write_text("")
    assert dict(facts(*read(save)))["Restarts"] == "–"


def test_goodput_leaves_out_what_a_start_without_an_iteration_has_discarded(save: Path) -> None:
    journal = RunJournal(save, log=lambda _text: None)
    report = FailureReport(FailureKind.RANK, "killed", 0, 1)
    journal.start_generation(5, report, 5500, None, report.detected_at)
    journal.update(None)
    run, course = read(save)
    assert run.resumed_from == 5500
    assert course.useful_seconds == pytest.approx(journal.summary().useful_seconds, abs=0.01)
    assert course.useful_seconds == pytest.approx(5500 * STEP_SECONDS, rel=0.001)


def test_a_file_that_cannot_be_read_to_its_end_has_a_reason_and_no_goodput(
    save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_reader: ProgressReader, _chunk: bytes) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ProgressReader, "_take", failing)
    run, course = read(save)
    assert "cannot be read: Input/output error; check the volume that it is on" in str(course.problem)
    assert "Goodput" not in dict(facts(run, course))
    assert course.share == 0.0


def test_a_symbolic_link_to_itself_hides_no_other_run(save: Path) -> None:
    (save.parent / "latest").symlink_to("latest")
    page = asyncio.run(Journals([save.parent]).runs("", 0, 10))
    assert [each.name for each in page.runs] == ["llama3-8b"]
    [problem] = page.problems
    assert "latest cannot be read: Too many levels of symbolic links; remove the symbolic link" in problem


@pytest.mark.parametrize("name", [PROGRESS_FILE, JOURNAL_FILE])
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_regular_file_is_reported_with_its_path_and_does_not_block(
    save: Path, name: str, kind: str
) -> None:
    path = save / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    run, _ = read(save)
    [problem] = run.problems
    assert problem.startswith(f"{path} cannot be read: ")
    assert problem.rpartition("; ")[2].split(" ")[0] in ("move", "remove"), "what to do"


def test_folders_without_a_journal_are_refused_with_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name, message in (
        ("empty", "neither it nor a folder in it has incidents.json or progress.jsonl; name a checkpoint"),
        ("missing", "cannot be read: No such file or directory; check the path, and that its volume is"),
        ("file", "cannot be read: Not a directory; name the checkpoint directory"),
    ):
        with pytest.raises(JournalError, match=message) as raised:
            Journals([tmp_path / name])
        assert str(tmp_path / name) in str(raised.value)


def test_a_folder_that_may_not_be_read_is_named_with_what_to_do(
    save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may run as root, whom no mode stops.
    def scandir(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(JournalError, match=r"cannot be read: Permission denied; start the page as a user"):
        Journals([save.parent])


def test_a_directory_of_a_volume_that_may_not_be_read_is_reported_and_the_others_are_shown(
    save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.lstat

    def refused(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, Path) and path.parent.name in ("secret", "lost+found"):
            raise PermissionError(13, "Permission denied", str(path))
        return status(path, **options)

    for name in ("secret", "lost+found"):
        (save.parent / name).mkdir()
    monkeypatch.setattr(os, "lstat", refused)
    page = asyncio.run(Journals([save.parent]).runs("", 0, 10))
    assert [each.name for each in page.runs] == ["llama3-8b"]
    [problem] = page.problems
    assert problem.startswith(
        f"{save.parent / 'secret'} cannot be read: Permission denied; start the page as"
    )
    shutil.rmtree(save)
    with pytest.raises(JournalError, match=r"secret cannot be read: Permission denied"):
        Journals([save.parent])


def test_a_volume_has_its_runs_and_new_ones_appear(save: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_FOUND_SECONDS", 0.0)
    (save.parent / "lost+found").mkdir()
    found = Journals([save.parent, save])
    page = asyncio.run(found.runs("", 0, 10))
    assert [(each.folder, each.name) for each in page.runs] == [("checkpoints", "llama3-8b")]
    write_run(save.parent / "tiny", [Start(1, 20)])
    page = asyncio.run(found.runs("", 0, 1))
    assert (page.total, len(page.runs)) == (2, 1)
    assert [each.name for each in asyncio.run(found.runs("TINY", 0, 10)).runs] == ["tiny"]
    tiny = asyncio.run(found.named("checkpoints", "tiny"))
    assert tiny is not None
    assert asyncio.run(found.run(tiny.uid)) == tiny
    shutil.rmtree(save.parent / "tiny")
    assert asyncio.run(found.run(tiny.uid)) is None


def test_a_directory_that_went_away_is_reported_and_found_again(
    save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_FOUND_SECONDS", 0.0)
    found = Journals([save.parent])
    save.parent.rename(save.parent.with_name("away"))
    page = asyncio.run(found.runs("", 0, 10))
    assert page.total == 0
    assert f"{save.parent} cannot be read: No such file or directory; check the path" in page.problems[0]
    save.parent.with_name("away").rename(save.parent)
    assert asyncio.run(found.runs("", 0, 10)).problems == ()


def test_names_that_are_not_utf_8_can_be_shown(tmp_path: Path) -> None:
    run, course = read(write_run(tmp_path / "a\udcff\u202eb", [Start(1, 20)]))
    assert run.name == "a\ufffd\ufffdb"
    run.directory.encode()
    assert course.points


def test_nothing_in_the_directory_is_changed(save: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in [save, *save.rglob("*")]
        }

    before = state()
    run, course = read(save)
    assert checkpoints(course)
    assert events(run, course)
    assert state() == before

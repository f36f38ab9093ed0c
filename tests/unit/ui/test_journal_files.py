"""Progress files and checkpoint directories that the trainer's own writers have written."""

import json
from pathlib import Path
from typing import BinaryIO

import pytest
from megatron_contract.environment import PROGRESS_FILE
from megatron_operator.ui import journal_files, journal_progress
from megatron_operator.ui.journal_files import find_checkpoints
from megatron_operator.ui.journal_progress import CHUNK, ProgressReader, last_iteration
from megatron_operator.ui.points import MAX_SAMPLES
from megatron_trainer.checkpoints.selection import TRACKER, newest_complete, why_incomplete
from megatron_trainer.flags import BRIDGE_FORMAT, FSDP_FORMAT
from megatron_trainer.telemetry.reporter import ProgressFile

from testkit.example_journals import STEP_SECONDS, Start, append_iteration, write_checkpoint, write_run


@pytest.fixture
def save(tmp_path: Path) -> Path:
    return write_run(tmp_path / "llama3-8b")


def whole(path: Path) -> ProgressReader:
    reader = ProgressReader(path)
    reader.advance(60.0)
    assert reader.complete
    return reader


def test_torn_and_foreign_lines_are_left_out_and_counted(save: Path) -> None:
    path = save / PROGRESS_FILE
    before = whole(path)
    with path.open("ab") as file:
        file.write(b'{"iteration": 6001, "lmL\n\xff\xfe\n[1]\n{"iteration": "x"}\n\n{"lmLoss": NaN}\n')
        file.write(b'{"iteration": 6001, "lmLoss": NaN, "generation": 4, "stepSeconds": 8, "time": 1.8e9}\n')
        file.write(b'{"iteration": 6002, "gen')
    reader = whole(path)
    assert reader.skipped == 5
    assert reader.last is not None
    assert (reader.last.iteration, reader.last.lm_loss) == (6001, None)
    assert len(reader.points) == len(before.points) + 1
    assert last_iteration(path) == reader.last


def test_a_line_is_read_once_it_is_complete(save: Path) -> None:
    path = save / PROGRESS_FILE
    reader = whole(path)
    with path.open("ab") as file:
        file.write(b'{"iteration": 60')
    reader.advance(60.0)
    assert reader.complete
    assert reader.last is not None
    assert reader.last.iteration == 6000
    # The trainer removes what another process left, and appends.
    append_iteration(ProgressFile(path), 6001, 5)
    reader.advance(60.0)
    assert reader.complete
    assert (reader.last.iteration, reader.skipped) == (6001, 0)


def test_a_line_longer_than_a_chunk_is_left_out(save: Path) -> None:
    path = save / PROGRESS_FILE
    with path.open("ab") as file:
        file.write(b"x" * (2 * CHUNK + 100) + b"\n")
    append_iteration(ProgressFile(path), 6001, 4)
    reader = whole(path)
    assert reader.last is not None
    assert (reader.last.iteration, reader.skipped) == (6001, 1)


def test_a_file_that_was_replaced_is_read_from_its_beginning(save: Path) -> None:
    path = save / PROGRESS_FILE
    reader = whole(path)
    path.unlink()
    reader.advance(60.0)
    assert reader.complete
    assert reader.points == []
    for iteration in range(1, 4):
        append_iteration(ProgressFile(path), iteration, 1)
    reader.advance(60.0)
    assert reader.complete
    assert [each.iteration for each in reader.points] == [1, 2, 3]
    assert reader.repeated == 0


def test_a_large_file_is_read_in_parts_and_keeps_few_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_progress, "CHUNK", 8 << 10)
    monkeypatch.setattr(journal_progress, "_MAX_SUMS", 1000)
    path = write_run(tmp_path / "a", [Start(1, 3000)]) / PROGRESS_FILE
    reader, shares = ProgressReader(path), []
    while not reader.complete:
        reader.advance(0.0)
        shares.append(reader.share)
    assert len(shares) > 10
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert reader.share == 1.0
    assert len(reader.points) <= MAX_SAMPLES
    assert reader.points[-1].iteration == 3000
    # Not every sum of step times is remembered; the total stays.
    assert reader.useful_seconds() == pytest.approx(3000 * STEP_SECONDS, rel=0.001)
    append_iteration(ProgressFile(path), 1001, 2)
    reader.advance(60.0)
    assert reader.complete
    assert reader.useful_seconds() == pytest.approx(1001 * STEP_SECONDS, rel=0.01)


def test_checkpoints_are_complete_where_the_trainer_takes_them_for_complete(save: Path) -> None:
    broken = {1000: ".metadata", 5500: "metadata.json"}
    (save / "iter_0004500" / "metadata.json").write_text('{"sharded_back')
    (save / "iter_0004000" / "metadata.json").write_text("{}")
    (save / "iter_0003500" / ".metadata").write_bytes(b"")
    (save / "iter_0007000").write_text("")
    for iteration, name in broken.items():
        (save / f"iter_{iteration:07d}" / name).unlink()
    (save / "iter_0006000" / "metadata.json").write_bytes(b"")
    (save / "iter_0006500.broken-1").mkdir()
    found = find_checkpoints(save)
    assert (found.total, found.set_aside) == (12, 1)
    assert [each.iteration for each in found.newest] == list(range(6000, 0, -500))
    for each in found.newest:
        reason = why_incomplete(save / f"iter_{each.iteration:07d}")
        assert (each.problem is None) == (reason is None), reason
        assert (each.time is None) == (reason is not None)
    assert found.newest_complete is not None
    assert found.newest_complete.iteration == newest_complete(save) == 5000


def test_a_checkpoint_of_bridge_needs_its_last_file(save: Path) -> None:
    for path in sorted(save.glob("iter_*"))[:-1]:
        for name in ("train_state.pt", "run_config.yaml"):
            (path / name).write_text("x")
    newest = find_checkpoints(save).newest
    assert newest[0].problem == "train_state.pt is missing: the save has not finished"
    assert newest[1].problem is None
    assert newest_complete(save, BRIDGE_FORMAT) == newest[1].iteration


def test_a_checkpoint_of_the_older_format_has_no_metadata(save: Path) -> None:
    path = write_checkpoint(save, 7000)
    for name in ("metadata.json", ".metadata"):
        (path / name).unlink()
    (path / "mp_rank_00").mkdir()
    (path / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"x")
    [newest, *_] = find_checkpoints(save).newest
    assert newest.problem is why_incomplete(path, "torch") is None
    (path / "mp_rank_00" / "empty.pt").write_bytes(b"")
    [newest, *_] = find_checkpoints(save).newest
    assert newest.problem == "empty.pt is empty"


def test_a_checkpoint_that_may_not_be_read_has_the_reason_and_hides_no_other(
    save: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (save / "iter_0007000").symlink_to("iter_0007000")
    opened = journal_files.open_regular

    def refused(path: Path) -> BinaryIO:
        if path.parent.name == "iter_0006000":
            raise PermissionError(13, "Permission denied")
        return opened(path)

    monkeypatch.setattr(journal_files, "open_regular", refused)
    link, denied, readable, *_ = find_checkpoints(save).newest
    assert "Too many levels of symbolic links" in str(link.problem)
    assert "metadata.json cannot be read: Permission denied; start the page as" in str(denied.problem)
    assert readable.problem is None


def test_lines_that_the_trainer_does_not_count_are_left_out(save: Path) -> None:
    path = save / PROGRESS_FILE
    for field, value in (("iteration", 2**53), ("iteration", 0), ("time", None), ("stepSeconds", None)):
        line = {"iteration": 6001, "generation": 4, "time": 1.8e9, "stepSeconds": 8.0} | {field: value}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    reader = whole(path)
    assert reader.last is not None
    assert (reader.last.iteration, reader.skipped) == (6000, 4)
    last = last_iteration(path)
    assert last is not None
    assert last.iteration == 6000


def test_part_of_a_last_line_does_not_count_as_unread(save: Path) -> None:
    path = save / PROGRESS_FILE
    with path.open("a") as file:
        file.write('{"iteration": 6001, "lm')
    reader = whole(path)
    assert reader.share == 1.0
    path.write_text('{"itera')
    reader = whole(path)
    assert (reader.share, reader.last) == (1.0, None)


def test_of_many_checkpoints_the_newest_are_listed(save: Path) -> None:
    for iteration in range(10_000, 10_050):
        write_checkpoint(save, iteration)
    found = find_checkpoints(save)
    assert found.total == 62
    assert [each.iteration for each in found.newest] == list(range(10_049, 10_029, -1))


def test_a_checkpoint_of_fsdp_has_no_metadata_json(save: Path) -> None:
    for path in save.glob("iter_*"):
        (path / "metadata.json").unlink()
    (save / "iter_0006000" / ".metadata").unlink()
    newest, other, *_ = find_checkpoints(save).newest
    assert newest.problem == ".metadata is missing or empty: the save has not finished"
    assert other.problem is None
    assert other.time is not None
    assert newest_complete(save, FSDP_FORMAT) == other.iteration


def test_a_first_save_without_metadata_json_is_not_taken_for_one_of_fsdp(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 500)
    (path / "metadata.json").unlink()
    (tmp_path / TRACKER).unlink()
    [found] = find_checkpoints(tmp_path).newest
    assert found.problem == "metadata.json is missing: the save has not finished"

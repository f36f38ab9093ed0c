"""Two Master pods never write the same checkpoint directory."""

import errno
import os
from pathlib import Path

import pytest
from megatron_contract.environment import LEASE_FILE
from megatron_trainer.checkpoints.checkpoint_lease import (
    FENCE_SECONDS,
    CheckpointLease,
    LeaseLostError,
    read_holder,
    require_generation,
    require_lease,
    was_held,
)
from megatron_trainer.telemetry.run_journal import RunJournal


def test_the_newest_holder_keeps_the_lease_and_the_older_one_loses_it(tmp_path: Path) -> None:
    older, newer = CheckpointLease(tmp_path, "older", "run"), CheckpointLease(tmp_path, "newer", "run")
    older.acquire()
    older.check()
    newer.acquire()
    newer.check()
    with pytest.raises(LeaseLostError, match="is owned by another Master pod"):
        older.check()
    with pytest.raises(LeaseLostError):
        require_lease(tmp_path, "older")
    require_lease(tmp_path, "newer")


def test_a_new_holder_waits_once_for_the_older_one_to_stop(tmp_path: Path) -> None:
    CheckpointLease(tmp_path, "older", "run").acquire()
    waits: list[float] = []
    newer = CheckpointLease(tmp_path, "newer", "run", sleep=waits.append)
    newer.acquire()
    newer.await_fence()
    newer.await_fence()
    (wait,) = waits
    assert 0 < wait <= FENCE_SECONDS


def test_the_first_holder_does_not_wait(tmp_path: Path) -> None:
    waits: list[float] = []
    first = CheckpointLease(tmp_path / "new", "first", "run", sleep=waits.append)
    first.acquire()
    first.await_fence()
    assert waits == []


def test_a_lease_lost_while_waiting_raises(tmp_path: Path) -> None:
    older = CheckpointLease(tmp_path, "older", "run")
    older.acquire()
    CheckpointLease(tmp_path, "newer", "run").acquire()
    with pytest.raises(LeaseLostError):
        older.await_fence()


def test_an_unreadable_lease_file_fences_nobody(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text("")
    require_lease(tmp_path, "anybody")


def test_a_holder_that_appears_while_the_lease_is_acquired_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    late = CheckpointLease(tmp_path, "late", "run", sleep=waits.append)
    written = os.fsync

    def let_another_be_first(file: int) -> None:
        monkeypatch.undo()
        CheckpointLease(tmp_path, "first", "run").acquire()
        written(file)

    monkeypatch.setattr(os, "fsync", let_another_be_first)
    late.acquire()
    late.await_fence()
    assert len(waits) == 1


def test_a_lease_that_cannot_be_looked_up_counts_as_one_that_was_held(tmp_path: Path) -> None:
    assert not was_held(tmp_path / "new", "run")
    (tmp_path / LEASE_FILE).symlink_to(LEASE_FILE)
    assert was_held(tmp_path, "run")
    (tmp_path / LEASE_FILE).unlink()
    assert not was_held(tmp_path, "run")
    CheckpointLease(tmp_path, "first", "run").acquire()
    assert was_held(tmp_path, "run")


def test_a_lease_of_another_run_was_not_held_by_this_one(tmp_path: Path) -> None:
    CheckpointLease(tmp_path, "first", "another").acquire()
    assert not was_held(tmp_path, "run")
    (tmp_path / LEASE_FILE).write_text("{")
    assert was_held(tmp_path, "run")


def test_acquiring_leaves_only_the_lease_file(tmp_path: Path) -> None:
    for incarnation in ("first", "second"):
        CheckpointLease(tmp_path, incarnation, "run").acquire()
        assert [path.name for path in tmp_path.iterdir()] == ["owner.json"]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A directory on a volume without space for the new file of a launcher named "newer"."""
    (tmp_path / f".{LEASE_FILE}.newer").symlink_to("/dev/full")
    return tmp_path


def test_a_new_holder_overwrites_the_lease_on_a_full_volume(full: Path) -> None:
    waits: list[float] = []
    older = CheckpointLease(full, "older" * 20, "run")
    newer = CheckpointLease(full, "newer", "run", sleep=waits.append)
    older.acquire()
    newer.acquire()
    newer.await_fence()
    assert read_holder(full)["incarnation"] == "newer"
    assert len(waits) == 1
    with pytest.raises(LeaseLostError):
        older.check()
    assert [path.name for path in full.iterdir()] == [LEASE_FILE]


def test_the_first_holder_needs_space_for_the_lease(full: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        CheckpointLease(full, "newer", "run").acquire()
    assert list(full.iterdir()) == []


def test_a_holder_whose_lease_was_overwritten_at_the_same_moment_has_to_acquire_it_again(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = full / LEASE_FILE
    CheckpointLease(full, "older", "run").acquire()
    newer = CheckpointLease(full, "newer", "run")

    def mix(_file: int) -> None:
        monkeypatch.undo()
        lease.write_bytes(lease.read_bytes().replace(b"}", b"  another text}"))

    monkeypatch.setattr(os, "fsync", mix)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        newer.acquire()
    assert read_holder(full) == {}
    newer.acquire()
    assert read_holder(full)["incarnation"] == "newer"


def test_ranks_of_an_earlier_generation_may_not_write(tmp_path: Path) -> None:
    require_generation(tmp_path, 1)
    RunJournal(tmp_path, print).start_generation(3, None, None, None, 0.0)
    require_generation(tmp_path, 3)
    with pytest.raises(LeaseLostError, match="is written by generation 3 now: the ranks of generation 2"):
        require_generation(tmp_path, 2)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"generation": null}', '{"generation": "x"}', "{}", "[" * 100_000, '{"generation": 1e999}'],
)
def test_a_journal_without_a_generation_stops_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "incidents.json").write_text(text)
    require_generation(tmp_path, 1)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "\x00", "[]", "{"])
def test_a_damaged_lease_names_no_holder(text: str, tmp_path: Path) -> None:
    (tmp_path / LEASE_FILE).write_text(text)
    assert read_holder(tmp_path) == {}

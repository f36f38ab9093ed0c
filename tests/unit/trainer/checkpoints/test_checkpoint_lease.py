"""Two Master pods never write the same checkpoint directory."""

from pathlib import Path

import pytest
from megatron_trainer.checkpoints.checkpoint_lease import (
    FENCE_SECONDS,
    CheckpointLease,
    LeaseLostError,
    require_lease,
)


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

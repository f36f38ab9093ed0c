"""Two Masters never write one checkpoint directory."""

from pathlib import Path

import pytest
from megatron_trainer.checkpoints.checkpoint_lease import (
    FENCE_SECONDS,
    NotOwner,
    Ownership,
    require_owner,
)


def test_the_newest_claim_holds_and_the_older_owner_is_told(tmp_path: Path) -> None:
    older, newer = Ownership(tmp_path, "older", "run"), Ownership(tmp_path, "newer", "run")
    older.claim()
    older.check()
    newer.claim()
    newer.check()
    with pytest.raises(NotOwner, match="belongs to another Master pod"):
        older.check()
    with pytest.raises(NotOwner):
        require_owner(tmp_path, "older")
    require_owner(tmp_path, "newer")


def test_the_newcomer_waits_once_until_the_older_one_has_had_time_to_see_it(tmp_path: Path) -> None:
    Ownership(tmp_path, "older", "run").claim()
    waits: list[float] = []
    newer = Ownership(tmp_path, "newer", "run", sleep=waits.append)
    newer.claim()
    newer.await_fence()
    newer.await_fence()
    (wait,) = waits
    assert 0 < wait <= FENCE_SECONDS


def test_the_first_owner_waits_for_nobody(tmp_path: Path) -> None:
    waits: list[float] = []
    first = Ownership(tmp_path / "new", "first", "run", sleep=waits.append)
    first.claim()
    first.await_fence()
    assert waits == []


def test_an_owner_that_lost_the_directory_while_it_waited_does_not_touch_it(tmp_path: Path) -> None:
    older = Ownership(tmp_path, "older", "run")
    older.claim()
    Ownership(tmp_path, "newer", "run").claim()
    with pytest.raises(NotOwner):
        older.await_fence()


def test_a_file_that_cannot_be_read_just_now_fences_nobody(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text("")
    require_owner(tmp_path, "anybody")

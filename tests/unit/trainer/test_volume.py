"""Room on the checkpoint volume: told before a save needs it."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_trainer.checkpoints import volume


def test_a_volume_with_less_than_the_next_checkpoint_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 1 << 30)
    assert volume.why_low(tmp_path, (1 << 30) // 2) is None
    assert volume.why_low(tmp_path, 1 << 30) == (
        f"1.0 GiB free on the volume of {tmp_path}, the next checkpoint needs about 1.1 GiB: enlarge the "
        "volume, or delete what is not needed there"
    )


def test_a_checkpoint_counts_with_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"x" * 24)
    assert volume.bytes_in(tmp_path) == 1024


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_are_readable(count: int, text: str) -> None:
    assert volume.readable(count) == text


def failing(times: int, code: int = errno.EROFS) -> Callable[[], None]:
    """A write that raises so often, and then works."""
    left = [times]

    def write() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, "no")

    return write


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "_POLL_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_write_that_fails_for_a_while_is_done_in_the_end_and_told_once() -> None:
    told: list[OSError | None] = []
    volume.persist(failing(3), 60, lambda: False, told.append)
    assert [error and error.errno for error in told] == [errno.EROFS, None]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("seconds", "interrupted"), [(0.0, False), (60.0, True)])
def test_the_error_is_raised_when_the_time_is_over_or_the_pod_must_stop(
    seconds: float, interrupted: bool
) -> None:
    with pytest.raises(OSError, match="no"):
        volume.persist(failing(10**9), seconds, lambda: interrupted, lambda _error: None)


def test_a_probe_passes_a_full_volume_and_finds_one_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.probe(tmp_path)
    assert list(tmp_path.iterdir()) == []
    write = failing(1, errno.ENOSPC)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: write())
    volume.probe(tmp_path)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        volume.probe(tmp_path / "gone")

"""Free space of the checkpoint volume, and writes to a volume that is unavailable for a while."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_trainer.checkpoints import volume


def test_a_shortage_is_reported_when_the_next_checkpoint_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 1 << 30)
    assert volume.describe_shortage(tmp_path, (1 << 30) // 2) is None
    assert volume.describe_shortage(tmp_path, 1 << 30) == (
        f"1.0 GiB free on the volume of {tmp_path}, the next checkpoint needs about 1.1 GiB: enlarge the "
        "volume or delete other files there"
    )


def test_a_shortage_during_a_save_is_of_what_the_save_has_not_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "free_bytes", lambda _path: 1 << 30)
    assert volume.describe_shortage(tmp_path, 2 << 30, written=3 << 29) is None
    assert volume.describe_shortage(tmp_path, 3 << 30, written=1 << 30) == (
        f"1.0 GiB free on the volume of {tmp_path}, the save in progress needs about 2.3 GiB more: enlarge "
        "the volume or delete other files there"
    )


def test_the_size_of_a_directory_includes_subdirectories(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"x" * 24)
    assert volume.directory_size(tmp_path) == 1024


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_are_formatted_with_units(count: int, text: str) -> None:
    assert volume.format_bytes(count) == text


def failing(times: int, code: int = errno.EROFS) -> Callable[[], None]:
    """A write that raises `times` times, then succeeds."""
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
def test_a_write_is_retried_and_reported_once() -> None:
    changes: list[OSError | None] = []
    volume.retry_until_writable(failing(3), 60, lambda: False, changes.append)
    assert [error and error.errno for error in changes] == [errno.EROFS, None]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("seconds", "interrupted"), [(0.0, False), (60.0, True)])
def test_the_error_is_raised_after_the_timeout_or_on_an_interruption(
    seconds: float, interrupted: bool
) -> None:
    with pytest.raises(OSError, match="no"):
        volume.retry_until_writable(failing(10**9), seconds, lambda: interrupted, lambda _error: None)


def test_a_probe_accepts_a_full_volume_but_not_an_unwritable_one(
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

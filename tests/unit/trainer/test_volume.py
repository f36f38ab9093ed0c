"""Room on the checkpoint volume: told before a save needs it."""

from pathlib import Path

import pytest
from megatron_trainer import volume


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

"""What killed ranks leave in shared memory is removed, and nothing that is in use."""

import mmap
from pathlib import Path

from megatron_trainer.launcher.shared_memory import remove_unused_segments


def segment(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    return path


def test_a_segment_of_a_killed_rank_is_removed(tmp_path: Path) -> None:
    left = segment(tmp_path, "nccl-AbCd12")
    assert remove_unused_segments(tmp_path) == ["nccl-AbCd12"]
    assert not left.exists()


def test_a_segment_that_a_process_maps_is_kept(tmp_path: Path) -> None:
    used = segment(tmp_path, "nccl-AbCd12")
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert remove_unused_segments(tmp_path) == []
    assert used.exists()


def test_segments_of_other_libraries_are_kept(tmp_path: Path) -> None:
    other = segment(tmp_path, "torch_123_456")
    assert remove_unused_segments(tmp_path) == []
    assert other.exists()

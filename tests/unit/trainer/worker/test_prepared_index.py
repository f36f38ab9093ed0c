"""An index that a killed rank 0 has half written is built again."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron_trainer.worker import prepared_index

from tests.unit.trainer.data.test_sample_documents import dataset_of, write_documents


def array(name: str) -> str:
    return f"{'a' * 32}-GPTDataset-train-{name}.npy"


@pytest.mark.parametrize("left", [0, 4, 100, -1], ids=["empty", "magic", "header", "less a byte"])
def test_what_a_killed_rank_has_half_written_is_built_again(left: int, tmp_path: Path) -> None:
    prefixes = [write_documents(tmp_path / name, first) for name, first in (("a", 100), ("b", 500))]
    cache = tmp_path / "cache"
    before = dataset_of(cache, *prefixes)[7]["tokens"].tolist()
    arrays = sorted(cache.glob("*.npy"))
    kinds = {path.stem.rpartition("-")[2] for path in arrays}
    assert kinds >= {"document_index", "sample_index", "shuffle_index", "dataset_sample_index"}
    for path in arrays:
        os.truncate(path, left if left >= 0 else path.stat().st_size - 1)
    with pytest.raises((EOFError, ValueError, pickle.UnpicklingError)):
        dataset_of(cache, *prefixes)
    prepared_index.take(cache, tmp_path / "none")
    assert not list(cache.glob("*.npy"))
    assert dataset_of(cache, *prefixes)[7]["tokens"].tolist() == before


def test_what_is_torn_is_taken_from_the_data_volume_where_a_job_has_built_it(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "index"
    for each in (cache, folder):
        each.mkdir()
        np.save(each / array("shuffle_index"), np.arange(4))
    os.truncate(cache / array("shuffle_index"), 130)
    assert prepared_index.take(cache, folder) == 1
    assert np.load(cache / array("shuffle_index")).tolist() == [0, 1, 2, 3]


def test_whole_arrays_and_files_of_others_stay(tmp_path: Path) -> None:
    np.save(tmp_path / array("shuffle_index"), np.arange(4))
    for name in ("training.jsonl.lines.npy", "notes.npy", array("shuffle_index").replace("npy", "txt")):
        (tmp_path / name).write_bytes(b"torn")
    before = sorted(tmp_path.iterdir())
    prepared_index.take(tmp_path, tmp_path / "none")
    assert sorted(tmp_path.iterdir()) == before


def test_an_error_of_the_volume_is_no_damage(tmp_path: Path) -> None:
    """Reads of address 0 of a process's memory fail with EIO."""
    path = tmp_path / array("sample_index")
    path.symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error"):
        np.load(path, mmap_mode="r", allow_pickle=False)
    prepared_index.take(tmp_path, tmp_path / "none")
    assert path.is_symlink()

"""The end of a dataset's preparation: its shards are joined once, whichever worker is first."""

from pathlib import Path

import pytest
from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.sources import Source


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    found = Dataset(Source("data.sources[0]", "*.jsonl", "jsonl", tmp_path / "out"), tmp_path, (), "digest")
    found.work.mkdir()
    (tmp_path / ".data.bin.part").touch()
    return found


def test_the_shards_are_joined_and_removed(dataset: Dataset) -> None:
    dataset.finish(dataset.done.touch, ".data.*")
    assert [path.name for path in dataset.folder.iterdir()] == ["done.json"]


def test_a_dataset_that_is_complete_is_not_joined_again(dataset: Dataset) -> None:
    dataset.done.touch()
    dataset.finish(lambda: pytest.fail("joined again"), ".data.*")
    assert [path.name for path in dataset.folder.iterdir()] == ["done.json"]


def test_a_worker_that_lost_the_shards_to_another_one_goes_on(dataset: Dataset) -> None:
    def join() -> None:
        dataset.done.touch()
        raise FileNotFoundError("the other worker has removed the shards")

    dataset.finish(join, ".data.*")
    assert not dataset.work.exists()


def test_missing_shards_of_an_unfinished_dataset_are_an_error(dataset: Dataset) -> None:
    def join() -> None:
        raise FileNotFoundError("shards/000001.tokens")

    with pytest.raises(FileNotFoundError):
        dataset.finish(join, ".data.*")
    assert dataset.work.exists()

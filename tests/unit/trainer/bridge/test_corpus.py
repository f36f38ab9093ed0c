"""Datasets of Megatron that Megatron-Bridge pretrains on. A stand-in takes the configuration's place."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from megatron_contract.bridge_run import DATA_PATH, VALIDATION_DATA, BridgeRun, Value
from megatron_contract.exit_codes import ExitCode
from megatron_trainer.bridge import corpus
from megatron_trainer.worker.failures import RankError


def completed(**overrides: list[Value]) -> SimpleNamespace:
    dataset = SimpleNamespace(
        data_path=overrides["trained"], blend=None, blend_per_split=None, split="98,2,0"
    )
    paths = {"trained": DATA_PATH, "evaluated": VALIDATION_DATA}
    run = BridgeRun("function", {paths[name]: words for name, words in overrides.items()})
    corpus.complete(run, SimpleNamespace(dataset=dataset))
    return dataset


def write(folder: Path, *names: str) -> list[Value]:
    for name in names:
        for suffix in (".bin", ".idx"):
            (folder / f"{name}{suffix}").touch()
    return [f"{folder}/{name}" for name in names]


@pytest.mark.parametrize("path", [DATA_PATH, VALIDATION_DATA])
def test_a_dataset_without_its_index_is_refused_by_its_name(path: str, tmp_path: Path) -> None:
    whole, torn = write(tmp_path, "whole", "torn")
    (tmp_path / "torn.idx").unlink()
    words = {DATA_PATH: [torn], VALIDATION_DATA: [whole]}
    if path == VALIDATION_DATA:
        words = {DATA_PATH: [whole], VALIDATION_DATA: ["0.5", torn]}
    with pytest.raises(RankError, match=rf"{path}: .*/torn\.idx does not exist") as refused:
        completed(trained=words[DATA_PATH], evaluated=words[VALIDATION_DATA])
    assert refused.value.code is ExitCode.BAD_DATA


def test_without_datasets_for_validation_the_others_are_split(tmp_path: Path) -> None:
    words = write(tmp_path, "web")
    found = completed(trained=words)
    assert (found.data_path, found.split, found.blend_per_split) == (words, "98,2,0", None)


def test_datasets_for_validation_are_a_mix_of_their_own(tmp_path: Path) -> None:
    web, news, held_out = write(tmp_path, "web", "news", "held-out")
    found = completed(trained=["0.7", web, "0.3", news], evaluated=[held_out])
    assert found.blend_per_split == [([web, news], [0.7, 0.3]), ([held_out], None), None]
    assert (found.data_path, found.blend, found.split) == (None, None, None)

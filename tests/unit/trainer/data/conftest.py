"""A small tokenizer, and shards small enough that a few documents need several."""

from pathlib import Path

import pytest
from megatron_trainer.data import sources, tokenizer

from tests.unit.trainer.data.corpus import TEXTS


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(iter(TEXTS), 400, folder)
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SHARD_BYTES", 1500)

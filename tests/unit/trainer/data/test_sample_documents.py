"""The documents of a sample are those that Megatron's own datasets read for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("megatron.training", reason="make setup-trainer")

from megatron_trainer.data.sample_documents import SampleIndexError, open_index

LENGTH, SAMPLES = 16, 60


class Tokenizer:
    """What Megatron's datasets ask of a tokenizer."""

    vocab_size, eod, pad = 1000, 0, -1

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"class": "tests", "tokenizer_path": "/data/tokenizer"}


def write_documents(prefix: Path, first: int) -> str:
    """Documents of 1 to 23 tokens, of which each names its document."""
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for number in range(40):
        builder.add_document(torch.full((1 + 7 * number % 23,), first + number), [1 + 7 * number % 23])
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def dataset_of(cache: Path, *prefixes: str) -> Any:
    """Megatron's training set of one dataset, or of a blend."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron_trainer.worker import dataset_helpers

    dataset_helpers.skip_build()
    weights = None if len(prefixes) == 1 else [0.7, 0.3]
    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=LENGTH,
        blend=(list(prefixes), weights),
        split="100,0,0",
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        mid_level_dataset_surplus=0.1,
    )
    sizes: list[Any] = [SAMPLES, 0, 0]
    assert config.split_matrix is not None
    config.split_matrix[1:] = [None, None]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


@pytest.mark.parametrize("blended", [False, True], ids=["one dataset", "a blend"])
def test_parts_are_the_documents_and_tokens_that_megatron_reads(blended: bool, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron_trainer.worker.recorded_loader import describe

    firsts = {write_documents(tmp_path / name, first): first for name, first in (("a", 100), ("b", 500))}
    dataset = dataset_of(tmp_path / "cache", *list(firsts)[: 2 if blended else 1])
    loader: Any = SimpleNamespace(dataset=dataset, batch_sampler=None)
    index = open_index(describe(loader), tmp_path / "save")
    assert index is not None
    assert index.tokenizer == Path("/data/tokenizer")
    files = {prefix: IndexedDataset(prefix) for prefix in firsts}
    seen = set()
    for number in range(SAMPLES):
        tokens: list[int] = []
        for part in index.parts(number):
            assert part.first_token is not None
            read = files[part.path].get(part.number, offset=part.first_token, length=part.tokens).tolist()
            assert set(read) <= {firsts[part.path] + part.number}
            tokens += read
            seen.add(part.path)
        sample = dataset[number]
        assert tokens == [*sample["tokens"].tolist(), int(sample["labels"][-1])]
    assert len(seen) == (2 if blended else 1)
    with pytest.raises(SampleIndexError, match=f"sample {10**6} is not one of"):
        index.parts(10**6)


def test_an_index_is_found_beside_the_checkpoints_where_the_volume_has_another_path(tmp_path: Path) -> None:
    from megatron_trainer.worker.recorded_loader import describe

    save = tmp_path / "volume" / "run"
    dataset = dataset_of(save / "data-cache", write_documents(tmp_path / "a", 100))
    loader: Any = SimpleNamespace(dataset=dataset, batch_sampler=None)
    described = describe(loader) | {"folder": "/checkpoints/run/data-cache"}
    assert open_index(described, save) is not None
    (save / "data-cache" / f"{described['index']}-shuffle_index.npy").unlink()
    with pytest.raises(SampleIndexError, match=r"shuffle_index\.npy"):
        open_index(described, save)


def test_random_numbers_have_no_documents(tmp_path: Path) -> None:
    assert open_index({"kind": "random"}, tmp_path) is None

"""What is read of prepared sources by Megatron-Bridge: by their weights, and documents among chats."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.bridge.data import loaders
from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
from megatron.bridge.data.datasets.gpt_sft import GPTSFTChatDataset
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import sample_blend
from megatron_trainer.bridge.chat_tokens import ids_of
from megatron_trainer.bridge.sample_blend import PARTS, BlendError
from megatron_trainer.worker.failures import RankError


@dataclasses.dataclass(kw_only=True)
class BlendedDatasetConfig(GPTSFTDatasetConfig):
    """Samples of `dataset_root`, of which a run reads so many in all, by the weights there."""

    train_samples: int = 0
    valid_samples: int = 0


def read_by_weight(config: Any) -> None:
    """Have a run read its samples by the weights beside them. Raises RankError if there are none."""
    dataset = config.dataset
    try:
        sample_blend.load(Path(dataset.dataset_root))
    except BlendError as error:
        raise RankError(ExitCode.BAD_DATA, f"dataset.dataset_root: {error}") from error
    fields = {each.name: getattr(dataset, each.name) for each in dataclasses.fields(dataset) if each.init}
    training, validation, _ = loaders.get_train_valid_test_num_samples(config)
    # Of the types of loaders this one continues in order after a resume, and begins again at the end.
    fields |= {"train_samples": training, "valid_samples": validation, "dataloader_type": "batch"}
    config.dataset = BlendedDatasetConfig(**fields)


def install() -> None:
    """Wrap the functions of Bridge that make samples, datasets and loaders."""
    read_documents()
    GPTSFTDatasetBuilder._build_datasets = _blend(GPTSFTDatasetBuilder._build_datasets)
    loaders.build_pretraining_data_loader = _in_order(loaders.build_pretraining_data_loader)


def read_documents() -> None:
    """Have datasets of chats read documents among them; may be called again."""
    inner = GPTSFTChatDataset._process_example
    if not hasattr(inner, "of_chats"):
        GPTSFTChatDataset._process_example = _read_documents(inner)


class _Order:
    """The places of samples in their file, as Bridge's datasets look them up."""

    def __init__(self, places: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> tuple[int, None, None]:
        return int(self._places[number]), None, None


def _read_documents(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The loss counts all labels of a line with ids, as in pretraining."""

    def process(dataset: Any, example: dict[str, Any]) -> dict[str, Any]:
        ids = ids_of(example)
        if ids is None:
            found: dict[str, Any] = inner(dataset, example)
            return found
        tokens = torch.tensor(ids, dtype=torch.long)
        return {
            "input_ids": tokens,
            "loss_mask": torch.ones(len(ids), dtype=torch.bool),
            "context_ids": tokens[:1],
            "answer_ids": tokens[1:],
            "metadata": {},
        }

    vars(process)["of_chats"] = inner
    return process


def _blend(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def build(builder: Any) -> list[Any]:
        datasets, config = inner(builder), builder.config
        if not isinstance(config, BlendedDatasetConfig):
            return datasets
        mixes = sample_blend.load(Path(str(config.dataset_root)))
        counts = (config.train_samples, config.valid_samples)
        for dataset, part, count in zip(datasets, PARTS, counts, strict=False):
            mix = mixes[part]
            if dataset is not None and mix is not None:
                dataset.max_num_samples = count
                dataset.samples_mapping = _Order(sample_blend.order(mix, count, config.seed))
        return datasets

    return build


def _in_order(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Samples in a blend are in order already: shuffled, an iteration would have other shares."""

    def make(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        loader = inner(dataset, *args, **kwargs)
        if isinstance(getattr(dataset, "samples_mapping", None), _Order):
            loader.batch_sampler.shuffle = False
        return loader

    return make

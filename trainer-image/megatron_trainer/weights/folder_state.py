"""The tensors of a folder in place of those that Megatron-Bridge itself would read of its files."""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.bridge.models.hf_pretrained.state import StateDict, StateSource

from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder


class _FolderSource(StateSource):
    def __init__(self, folder: HuggingFaceFolder) -> None:
        self._folder = folder

    def get_all_keys(self) -> list[str]:
        return sorted(self._folder.headers)

    def load_tensors(self, keys: Sequence[str]) -> dict[str, torch.Tensor]:
        return {key: self._folder.tensor(key) for key in keys if key in self._folder.headers}


def use(bridge: Any, folder: HuggingFaceFolder) -> None:
    """Have an AutoBridge read the values of `folder`.

    Bridge itself reads weights of 8 bits for some architectures, and mxfp4 for GPT-OSS. Without an index it
    reads all files, also those of another layout.
    """
    bridge.hf_pretrained._state_dict_accessor = StateDict(_FolderSource(folder))

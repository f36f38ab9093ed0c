"""Tensors of Megatron, made of files in which a layer's experts share tensors."""

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron_trainer.weights.folder_tensors import FolderTensors
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder

EXPERTS, LAYERS = 2, 2


class Joined:
    """The mapping of a matrix of one expert, of a tensor with those of all experts."""

    is_grouped_export = True

    def __init__(self, layer: int, matrix: str, expert: int) -> None:
        self.hf_param = f"model.layers.{layer}.mlp.experts.{matrix}"
        self._expert = expert

    def hf_to_megatron(self, read: torch.Tensor, _module: object) -> torch.Tensor:
        return read[self._expert].clone()


class Bridge:
    """Reads tensors, and remembers which of them are still in memory."""

    def __init__(self, tasks: list[Any]) -> None:
        self._tasks = tasks
        self.read: list[tuple[str, weakref.ref[torch.Tensor]]] = []

    def build_conversion_tasks(self, *_: object) -> list[Any]:
        return self._tasks

    def maybe_modify_loaded_hf_weight(self, name: str, _state: object) -> torch.Tensor:
        tensor = torch.ones(EXPERTS, 3, 3)
        self.read.append((name, weakref.ref(tensor)))
        return tensor

    def held(self) -> set[str]:
        gc.collect()
        return {name for name, reference in self.read if reference() is not None}


def test_a_tensor_of_all_experts_is_read_once_and_held_for_its_layer_alone() -> None:
    matrices = {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}
    names = {
        f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.{part}.weight": (layer, matrix, expert)
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for part, matrix in matrices.items()
    }
    tasks = [
        SimpleNamespace(param_name=name, mapping=Joined(*place), megatron_module=object())
        for name, place in names.items()
    ]
    model = SimpleNamespace(state_dict=lambda: {name: torch.empty(3, 3) for name in names})
    bridge = Bridge(tasks)
    whole = SimpleNamespace(_model_bridge=bridge, hf_pretrained=SimpleNamespace(state={}))
    tensors = FolderTensors(whole, model, HuggingFaceFolder(Path("model"), {}, {}))
    held = []
    for name in names:
        assert torch.equal(tensors(name), torch.ones(3, 3))
        held.append(len(bridge.held()))
    assert [name for name, _ in bridge.read] == [
        f"model.layers.{layer}.mlp.experts.{matrix}"
        for layer in range(LAYERS)
        for matrix in matrices.values()
    ]
    assert max(held) == len(matrices)

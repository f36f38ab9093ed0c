"""Files of safetensors that are written tensor by tensor."""

import json
from pathlib import Path

import pytest
import torch
from megatron_trainer.weights.huggingface_folder import write_weights
from megatron_trainer.weights.safetensors_file import DTYPES, SafetensorsFile
from safetensors.torch import load_file, save_file

TENSORS = {
    **{f"{name}.weight": torch.ones(3, 2).to(getattr(torch, name)) for name in DTYPES.values()},
    "b.scalar": torch.tensor(2.5),
    "a.empty": torch.empty(0, 4),
    'ü."quoted"': torch.arange(5),
    "bfloat16.view": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T,
}


@pytest.mark.parametrize("order", [1, -1])
def test_the_file_is_that_of_the_library_byte_for_byte(tmp_path: Path, order: int) -> None:
    file = SafetensorsFile(tmp_path / "own")
    for name, tensor in list(TENSORS.items())[::order]:
        file.add(name, tensor)
    file.finish()
    whole = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(whole, tmp_path / "library", metadata={"format": "pt"})
    assert (tmp_path / "own").read_bytes() == (tmp_path / "library").read_bytes()


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)}.items(), shard_bytes=16)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_files_are_filled_up_to_their_limit_and_a_larger_tensor_gets_one_of_its_own(tmp_path: Path) -> None:
    sizes = {"a": 4, "b": 4, "c": 20, "d": 2}
    write_weights(
        tmp_path, ((name, torch.full((size,), size)) for name, size in sizes.items()), shard_bytes=64
    )
    placed = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    numbers = {name: int(file.split("-")[1]) for name, file in placed.items()}
    assert numbers == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert load_file(tmp_path / placed["c"])["c"].tolist() == [20] * 20

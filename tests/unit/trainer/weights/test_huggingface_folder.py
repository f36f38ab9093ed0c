"""The folder of a Hugging Face model: what is refused, and how weights are written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import (
    INDEX,
    HuggingFaceFolder,
    conform,
    copy_small_files,
    write_weights,
)
from megatron_trainer.weights.tensors import Header

OMNI = "Qwen3OmniMoeForConditionalGeneration"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a configuration and two shards."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "dtype": "float32"})
    )
    (folder / "tokenizer.json").write_text("{}")
    write_weights(folder, {"a": torch.ones(4, 4), "b": torch.zeros(4, 4)}.items(), shard_bytes=100)
    return folder


def _refusal(folder: Path, *, weights: bool = True) -> str:
    with pytest.raises(ConversionError) as caught:
        huggingface_folder.read(folder, "--from", weights=weights)
    return str(caught.value)


def test_shards_are_written_with_their_index_and_read_back(model: Path) -> None:
    assert sorted(file.name for file in model.glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert json.loads((model / INDEX).read_text())["metadata"] == {"total_size": 128}
    read = huggingface_folder.read(model, "--from", weights=True)
    assert {name: tensor.sum().item() for name, tensor in read.tensors()} == {"a": 16.0, "b": 0.0}
    assert (read.architecture, read.dtype) == ("LlamaForCausalLM", "float32")


def test_weights_that_fit_are_one_file_without_an_index(tmp_path: Path) -> None:
    write_weights(tmp_path, {"a": torch.ones(2)}.items())
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_without_an_index_another_layout_of_the_weights_is_not_read(tmp_path: Path) -> None:
    """As in folders of Mistral's models."""
    (tmp_path / "config.json").write_text('{"architectures": ["Mistral3ForConditionalGeneration"]}')
    write_weights(tmp_path, {"norm.weight": torch.ones(2)}.items())
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated.safetensors")
    write_weights(tmp_path, {"model.norm.weight": torch.ones(2)}.items())
    read = huggingface_folder.read(tmp_path, "--from", weights=True)
    assert list(read.headers) == ["model.norm.weight"]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "is not a folder; mount or download" in _refusal(tmp_path / "absent")


def test_a_hub_name_is_refused_with_the_command_that_downloads_it() -> None:
    assert "hf download meta-llama/Llama-3.1-8B --local-dir FOLDER" in _refusal(
        Path("meta-llama/Llama-3.1-8B")
    )


def test_a_folder_without_configuration_is_refused(model: Path) -> None:
    (model / "config.json").unlink()
    assert "has no config.json" in _refusal(model)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "has no architectures"),
        ('{"architectures": []}', "has no architectures"),
        ('{"architectures": ["X"], "quantization_config": {"quant_method": "awq"}}', "quantized (awq)"),
    ],
)
def test_a_configuration_that_cannot_be_converted_is_refused(config: str, problem: str, model: Path) -> None:
    (model / "config.json").write_text(config)
    assert problem in _refusal(model)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({}, ""),
        ({"text_config": {}}, "text_config."),
        ({"thinker_config": {}}, "thinker_config."),
        ({"thinker_config": {"text_config": {}}}, "thinker_config.text_config."),
    ],
)
def test_quantized_weights_are_refused_in_whichever_part_of_the_configuration(
    config: dict[str, Any], place: str, model: Path
) -> None:
    part = config
    for name in place.split(".")[:-1]:
        part = part[name]
    part["quantization_config"] = {"quant_method": "gptq"}
    (model / "config.json").write_text(json.dumps({"architectures": ["X"]} | config))
    refusal = _refusal(model, weights=False)
    assert f"config.json: {place}quantization_config: the weights are quantized (gptq);" in refusal
    assert "convert a copy in bfloat16 or float32, whose config.json has no quantization_config" in refusal


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}}, False),
        ({"thinker_config": {"text_config": {"tie_word_embeddings": True}}}, True),
        ({"thinker_config": {"text_config": {"tie_word_embeddings": False}}}, False),
        ({"thinker_config": None, "text_config": None, "tie_word_embeddings": True}, True),
    ],
)
def test_the_output_layer_is_tied_by_the_text_s_part_unless_the_whole_sets_it(
    config: dict[str, Any], tied: bool
) -> None:
    assert HuggingFaceFolder(Path("absent"), config, {}).tied is tied


def test_the_output_layer_is_not_tied_where_neither_the_folder_nor_transformers_sets_it(
    tmp_path: Path,
) -> None:
    config = {"architectures": [OMNI], "model_type": "qwen3_omni_moe"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not huggingface_folder.read(tmp_path, "--base", weights=False).tied


def test_truncated_weights_are_refused(model: Path) -> None:
    file = model / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert f"{file} is damaged or truncated" in _refusal(model)


def test_an_empty_file_of_weights_is_refused(model: Path) -> None:
    file = model / "model-00001-of-00002.safetensors"
    file.write_bytes(b"")
    assert f"{file} is damaged or truncated (0 bytes)" in _refusal(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / "model-00001-of-00002.safetensors").unlink()
    assert "lacks model-00001-of-00002.safetensors" in _refusal(model)


def test_weights_in_another_format_are_refused(model: Path) -> None:
    for file in [*model.glob("*.safetensors"), model / INDEX]:
        file.unlink()
    (model / "pytorch_model.bin").write_bytes(b"")
    assert "has no *.safetensors file; it has pytorch_model.bin: save it as safetensors" in _refusal(model)
    assert huggingface_folder.read(model, "--base", weights=False).headers == {}


def test_small_files_are_copied_without_weights(model: Path, tmp_path: Path) -> None:
    copy_small_files(model, tmp_path / "kept")
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["config.json", "tokenizer.json"]


def test_the_configuration_names_the_dtype_of_the_weights(model: Path) -> None:
    huggingface_folder.set_dtype(model, "bfloat16")
    assert json.loads((model / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_tensor_takes_the_source_s_dtype_unless_values_would_change() -> None:
    headers = {name: Header(None, (1,), "bfloat16") for name in "ab"}
    tensors = {"a": torch.tensor([1.5]), "b": torch.tensor([1 + 2**-20]), "c": torch.tensor([1.0])}
    found = dict(conform(tensors.items(), headers))
    assert [found[name].dtype for name in "abc"] == [torch.bfloat16, torch.float32, torch.float32]

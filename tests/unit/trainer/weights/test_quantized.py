"""Weights in 8 and 4 bits: which are read, to which values, and what is refused before any is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_trainer.weights import huggingface_folder
from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.huggingface_folder import HuggingFaceFolder, copy_small_files
from safetensors.torch import save_file

PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INTEGERS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": PACKED}},
}


def _folder(path: Path, tensors: dict[str, torch.Tensor], quantization: object = None) -> Path:
    config = {"architectures": ["LlamaForCausalLM"]}
    settings = {} if quantization is None else {"quantization_config": quantization}
    (path / "config.json").write_text(json.dumps(config | settings))
    save_file(tensors, path / "model.safetensors")
    return path


def _read(path: Path, tensors: dict[str, torch.Tensor], quantization: object = None) -> HuggingFaceFolder:
    return huggingface_folder.read(_folder(path, tensors, quantization), "--from", weights=True)


def _refusal(path: Path, tensors: dict[str, torch.Tensor], quantization: object = None) -> str:
    with pytest.raises(ConversionError) as caught:
        _read(path, tensors, quantization)
    return str(caught.value)


def _bits(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)


def _random(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5


@pytest.mark.parametrize("quantization", [None, {"quant_method": "fp8", "weight_block_size": [128, 128]}])
def test_a_factor_is_of_a_block_of_128_rows_and_columns_and_of_what_is_left_at_the_edges(
    tmp_path: Path, quantization: object
) -> None:
    bits, factors = _bits(300, 200), _random(3, 2)
    tensors = {"a.weight": bits, "a.weight_scale_inv": factors, "norm.weight": torch.ones(4)}
    folder = _read(tmp_path, tensors, quantization)
    assert {name: (each.shape, each.dtype) for name, each in folder.headers.items()} == {
        "a.weight": ((300, 200), "bfloat16"),
        "norm.weight": ((4,), "float32"),
    }
    values = dict(folder.tensors())["a.weight"]
    for row, column in ((0, 0), (127, 127), (128, 0), (0, 128), (255, 199), (256, 127), (299, 199)):
        factor = factors[row // 128, column // 128]
        assert values[row, column] == (bits[row, column].float() * factor).to(torch.bfloat16)


def test_the_size_of_blocks_is_that_of_the_configuration(tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    tensors = {"a.weight": torch.ones(128, 64).to(torch.float8_e4m3fn), "a.weight_scale_inv": _random(2, 1)}
    values = _read(tmp_path, tensors, quantization).tensor("a.weight")
    expected = tensors["a.weight_scale_inv"].repeat_interleave(64, 0).expand(128, 64).to(torch.bfloat16)
    assert torch.equal(values, expected)


def test_experts_that_share_a_tensor_have_blocks_of_their_own(tmp_path: Path) -> None:
    tensors = {"experts.up": torch.ones(2, 200, 128).to(torch.float8_e4m3fn)}
    tensors["experts.up_scale_inv"] = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    values = _read(tmp_path, tensors).tensor("experts.up")
    assert [values[expert, row, 0].item() for expert in (0, 1) for row in (0, 199)] == [1.0, 2.0, 3.0, 4.0]


def test_one_factor_is_of_the_whole_and_those_of_activations_are_left_out(tmp_path: Path) -> None:
    tensors = {"a.weight": _bits(4, 4), "a.weight_scale_inv": torch.tensor(0.25)}
    folder = _read(tmp_path, tensors | {"a.activation_scale": torch.tensor(0.5)})
    assert list(folder.headers) == ["a.weight"]
    expected = (tensors["a.weight"].float() / 4).to(torch.bfloat16)
    assert torch.equal(folder.tensor("a.weight"), expected)


def test_mxfp4_has_the_values_of_transformers(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (2, 6, 3), dtype=torch.uint8, generator=generator)
    tensors = {"experts.down_proj_blocks": blocks, "experts.down_proj_scales": scales}
    folder = _read(tmp_path, tensors, {"quant_method": "mxfp4"})
    assert folder.headers["experts.down_proj"].shape == (2, 96, 6)
    expected = convert_moe_packed_tensors(blocks, scales)
    assert torch.equal(folder.tensor("experts.down_proj"), expected)


def test_integers_of_four_bits_are_eight_to_a_number_the_lowest_first(tmp_path: Path) -> None:
    packed = torch.tensor([[0x76543210, 0x0FEDCBA9]], dtype=torch.int32)
    tensors = {"a.weight_packed": packed, "a.weight_scale": torch.tensor([[1.0, 10.0]])}
    tensors["a.weight_shape"] = torch.tensor([1, 16], dtype=torch.int32)
    values = _read(tmp_path, tensors, INTEGERS).tensor("a.weight")
    assert values.tolist() == [[-8, -7, -6, -5, -4, -3, -2, -1, 10, 20, 30, 40, 50, 60, 70, -80]]


def test_two_values_of_four_bits_are_in_a_byte_the_lower_half_first(tmp_path: Path) -> None:
    packed = torch.full((1, 32), 0x21, dtype=torch.int8)
    packed[0, 16:] = torch.tensor(0xF7).to(torch.uint8).view(torch.int8)
    factors = torch.tensor([[2.0, 4.0]]).to(torch.float8_e8m0fnu)
    values = _read(tmp_path, {"a.weight": packed, "a.scale": factors}).tensor("a.weight")
    assert values[0].tolist() == [1.0, 2.0] * 16 + [24.0, -24.0] * 16


def test_a_copy_in_bfloat16_that_kept_the_configuration_is_read_as_it_is(tmp_path: Path) -> None:
    folder = _read(tmp_path, {"a.weight": torch.ones(2, 2, dtype=torch.bfloat16)}, {"quant_method": "fp8"})
    assert not folder.stored
    assert folder.tensor("a.weight").dtype == torch.bfloat16


@pytest.mark.parametrize("part", [None, "text_config"])
def test_what_is_written_is_not_described_as_quantized(tmp_path: Path, part: str | None) -> None:
    config: dict[str, Any] = {"architectures": ["X"], "text_config": {"hidden_size": 4}}
    (config[part] if part else config)["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    copy_small_files(tmp_path, tmp_path / "copy")
    expected = {"architectures": ["X"], "text_config": {"hidden_size": 4}}
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == expected


_EIGHT = {"a.weight": _bits(256, 128)}
_BYTES = {"a.weight": torch.ones(2, 16, dtype=torch.int8)}


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (_EIGHT, "a.weight is in float8_e4m3fn and has no a.weight_scale_inv or a.scale;"),
        (
            _EIGHT | {"a.weight_scale_inv": _random(1, 2)},
            "the factors a.weight_scale_inv of a.weight have shape [1, 2] for one of [256, 128];",
        ),
        (_BYTES, "a.weight is in int8 and has no a.scale;"),
        (
            _BYTES | {"a.scale": _random(1, 1)},
            "the factors a.scale of a.weight have shape [1, 1] for one of [2, 16];",
        ),
        (
            {"a_blocks": torch.ones(1, 2, 1, 16, dtype=torch.uint8)},
            "a_blocks is in uint8 and has no a_scales;",
        ),
        (
            {"a.weight_packed": torch.ones(1, 4, dtype=torch.int32), "a.weight_scale": _random(1, 1)},
            "a.weight_packed is in int32 and has no a.weight_shape;",
        ),
    ],
)
def test_factors_that_are_missing_or_do_not_fit_are_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor], problem: str
) -> None:
    refusal = _refusal(tmp_path, tensors)
    assert problem in refusal
    assert "convert a copy in bfloat16 or float32" in refusal


@pytest.mark.parametrize(
    ("quantization", "problem"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized (bitsandbytes)"),
        ({}, "quantized (an unnamed method)"),
        (
            {"quant_method": "fp8", "weight_block_size": [1, 128]},
            "weight_block_size is [1, 128], not two equal",
        ),
        ({"quant_method": "compressed-tensors"}, "otherwise than in symmetric groups of integers of 4 bits"),
        (INTEGERS | {"format": "float-quantized"}, "otherwise than in symmetric groups"),
        (INTEGERS | {"config_groups": {"group_0": None}}, "otherwise than in symmetric groups"),
        (INTEGERS | {"config_groups": {"group_0": {"weights": None}}}, "otherwise than in symmetric groups"),
        (
            INTEGERS | {"config_groups": {"group_0": {"weights": PACKED | {"symmetric": False}}}},
            "otherwise than",
        ),
    ],
)
def test_other_methods_are_refused(tmp_path: Path, quantization: object, problem: str) -> None:
    refusal = _refusal(tmp_path, {"a.weight": torch.ones(2, 2)}, quantization)
    assert "config.json: quantization_config: " in refusal
    assert problem in refusal


def test_a_shape_that_the_packed_integers_do_not_have_is_refused(tmp_path: Path) -> None:
    tensors = {"a.weight_packed": torch.ones(1, 4, dtype=torch.int32), "a.weight_scale": _random(1, 1)}
    folder = _read(tmp_path, tensors | {"a.weight_shape": torch.tensor([1, 31])}, INTEGERS)
    with pytest.raises(ConversionError, match=r"a\.weight_shape is \[1, 31\] for 1 x 32 values"):
        folder.tensor("a.weight")

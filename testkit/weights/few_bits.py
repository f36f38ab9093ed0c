"""Small models whose weights are stored in 8 or 4 bits, as published ones, by Megatron-Bridge's functions."""

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from safetensors.torch import load_file, save_file

BLOCK: Final = 16
"""Rows and columns that share a factor: more than one block of a small model's weights."""
_GROUP: Final = 32

Stored = tuple[dict[str, Any], Any]
"""The stored tensors of a weight, and its values."""


def store(source: Path, target: Path, kind: str) -> Path:
    """Write the model of `source` as one of `kind` to target/stored.

    Returns target/values, the model that has its values.
    """
    quantize, settings = KINDS[kind]
    tensors = load_file(source / "model.safetensors")
    stored: dict[str, Any] = {}
    values: dict[str, Any] = {}
    library = _library()
    for name, tensor in tensors.items():
        made = quantize(library, name, tensor) if _is_linear(name, tensor) else None
        parts, values[name] = made or ({name: tensor}, tensor)
        stored |= parts
    for folder, weights in ((target / "stored", stored), (target / "values", values)):
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "stored" / "config.json").read_text())
    part = config.get("text_config", config) if kind == "integers" else config
    part["quantization_config"] = settings
    (target / "stored" / "config.json").write_text(json.dumps(config, indent=2))
    return target / "values"


def _library() -> ModuleType:
    """Bridge's module by itself: its package takes ten seconds to import."""
    found = importlib.util.find_spec("megatron")
    assert found is not None
    (path,) = (
        file
        for folder in found.submodule_search_locations or ()
        if (file := Path(folder, "bridge/models/conversion/quantization_utils.py")).exists()
    )
    spec = importlib.util.spec_from_file_location("quantization_utils", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_linear(name: str, tensor: Any) -> bool:
    left_out = (
        "embed",
        "lm_head",
        "head.weight",
        "router",
        "gate.weight",
        "norm",
        "vision",
        "projector",
        "conv",
    )
    return tensor.dim() > 1 and not any(part in name for part in left_out)


def _blocks(library: ModuleType, name: str, tensor: Any, suffix: str = "weight_scale_inv") -> Stored | None:
    import torch

    if tensor.dim() != 2 or not name.endswith(".weight"):
        return None
    shape = [-(-length // BLOCK) for length in tensor.shape]
    bits, factors = library.quantize_fp8_e4m3fn_like_scale(tensor, torch.ones(shape), block_size=BLOCK)
    values = library.dequantize_fp8_blockwise(bits, factors, block_size=BLOCK)
    return {name: bits, name.removesuffix("weight") + suffix: factors}, values


def _whole(_: ModuleType, name: str, tensor: Any) -> Stored | None:
    import torch

    if tensor.dim() != 2 or not name.endswith(".weight"):
        return None
    factor = torch.tensor(tensor.abs().max().item() / 448, dtype=torch.bfloat16)
    bits = (tensor.float() / factor.float()).to(torch.float8_e4m3fn)
    of_inference = {name.removesuffix("weight") + "activation_scale": torch.tensor(0.5, dtype=torch.bfloat16)}
    stored = {name: bits, f"{name}_scale_inv": factor} | of_inference
    return stored, (bits.float() * factor.float()).to(torch.bfloat16)


def _deepseek_v4(library: ModuleType, name: str, tensor: Any) -> Stored | None:
    import torch

    if tensor.dim() != 2 or not name.endswith(".weight"):
        return None
    if ".experts." not in name:
        made = _blocks(library, name, tensor, "scale")
        assert made is not None
        bits, factors = made[0].values()
        factors = factors.log2().ceil().exp2().to(torch.float8_e8m0fnu)
        values = library.dequantize_fp8_blockwise(bits, factors.float(), block_size=BLOCK)
        return {name: bits, name.removesuffix("weight") + "scale": factors}, values
    like = torch.ones(tensor.shape[0], tensor.shape[1] // _GROUP).to(torch.float8_e8m0fnu)
    bits, factors = library.quantize_mxfp4_e2m1_like_scale(tensor, like)
    stored = {name: bits, name.removesuffix("weight") + "scale": factors}
    return stored, library.dequantize_mxfp4_e2m1_packed(bits, factors)


def _mxfp4(library: ModuleType, name: str, tensor: Any) -> Stored | None:
    import torch

    if tensor.dim() != 3:
        return None
    made = []
    for matrix in tensor.transpose(1, 2).contiguous():
        like = torch.ones(matrix.shape[0], matrix.shape[1] // _GROUP).to(torch.float8_e8m0fnu)
        bits, factors = library.quantize_mxfp4_e2m1_like_scale(matrix, like)
        exponents = factors.float().log2() + 127
        made.append((bits.view(torch.uint8).reshape(*exponents.shape, -1), exponents.to(torch.uint8)))
    blocks, scales = (torch.stack(each) for each in zip(*made, strict=True))
    values = library.dequantize_mxfp4(blocks, scales).transpose(1, 2)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, values


def _integers(library: ModuleType, name: str, tensor: Any) -> Stored | None:
    if ".experts." not in name or not name.endswith(".weight"):
        return None
    made = library.quantize_to_int4(tensor, group_size=_GROUP)
    parts = dict(zip(("packed", "scale", "shape"), made, strict=True))
    return {f"{name}_{part}": each for part, each in parts.items()}, library.dequantize_int4(*made)


_FP8: Final = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
_OF_BLOCKS: Final = {**_FP8, "weight_block_size": [BLOCK, BLOCK]}
_GROUPS: Final = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": _GROUP}
KINDS: Final[Mapping[str, tuple[Callable[[ModuleType, str, Any], Stored | None], dict[str, Any]]]] = {
    "blocks": (_blocks, _OF_BLOCKS),
    "one factor": (_whole, {**_FP8, "activation_scheme": "static", "weight_block_size": None}),
    "DeepSeek-V4": (_deepseek_v4, {**_OF_BLOCKS, "scale_fmt": "ue8m0"}),
    "mxfp4": (_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
    "integers": (
        _integers,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": _GROUPS}},
        },
    ),
}
"""How weights are stored -> what stores one, None for one that stays, and the model's quantization_config."""

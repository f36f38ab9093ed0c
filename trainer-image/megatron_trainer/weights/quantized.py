"""Weights that a folder of Hugging Face stores in 8 or 4 bits, read as their values in bfloat16.

How they are stored, and by which of the published models:

- fp8: `X.weight` in FP8 with `X.weight_scale_inv`, a factor for each block of config.json's weight_block_size
  (DeepSeek-V3, Kimi-K2, MiniMax-M2, Qwen3) or one for all (Ministral 3). DeepSeek-V4 calls it `X.scale`, and
  has experts of 4 bits beside, two in a byte, with a factor for 32 of a row.
- mxfp4: `X_blocks` and `X_scales`, 4 bits with an exponent for 32 (GPT-OSS). Rows and columns are exchanged.
- compressed-tensors, format pack-quantized: `X.weight_packed`, integers of 4 bits, eight in each of 32, with
  `X.weight_scale`, a factor for each group of a row (Kimi-K2.5).

A folder is recognised by its tensors: the copies in bfloat16 that people make often keep the configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any, Final

from megatron_trainer.weights.conversion_error import ConversionError
from megatron_trainer.weights.tensors import Header

DTYPE: Final = "bfloat16"
"""The dtype of the values."""
CONFIG_FIELD: Final = "quantization_config"
_METHODS: Final = ("fp8", "mxfp4", "compressed-tensors")
_FP8: Final = ("float8_e4m3fn", "float8_e5m2")
_PUBLISHED_BLOCK: Final = 128
_FOUR_BITS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of E2M1 by its three lower bits; the fourth is the sign."""
_EXPONENT_BIAS: Final = 127
_OF_INFERENCE: Final = (".activation_scale", ".input_scale")
"""How the names of factors of activations end, of which a model in bfloat16 has none."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the model that is stored as several."""

    header: Header
    """Shape and dtype of its values, and the file of the first part."""
    parts: Mapping[str, Header]
    """The stored tensors by name: bits, then factors."""
    values: Callable[..., Any]
    """Makes the values of the parts."""


def require_readable(config: Mapping[str, Any], place: str) -> None:
    """Raise ConversionError if a quantization_config is of a method that is not read.

    `config`: the quantization_config; `place`: its field, with the file before it.
    """
    method = config.get("quant_method", "an unnamed method")
    if method not in _METHODS:
        raise _refuse(f"{place}: the weights are quantized ({method})")
    if method == "fp8":
        _block(config, place)
    if method == "compressed-tensors":
        groups = config.get("config_groups")
        found = list(groups.values()) if isinstance(groups, dict) else []
        if config.get("format") != "pack-quantized" or not found or not all(map(_has_four_bits, found)):
            raise _refuse(
                f"{place}: the weights are quantized (compressed-tensors) otherwise than in symmetric groups "
                "of integers of 4 bits, format pack-quantized"
            )


def _has_four_bits(group: object) -> bool:
    weights = group.get("weights") if isinstance(group, dict) else None
    wanted = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    return isinstance(weights, dict) and wanted.items() <= weights.items()


def find(headers: Mapping[str, Header], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model that are stored in few bits, by their names in the model.

    `headers`: all tensors of the folder; `config`: the model's quantization_config, empty without one;
    `path` is the folder. Raises ConversionError for one whose factors are missing or do not fit.
    """
    block = _block(config, str(path))
    found: dict[str, StoredTensor] = {}
    for name, header in headers.items():
        if header.dtype in _FP8:
            found[name] = _eight_bits(name, headers, block, path)
        elif header.dtype == "uint8" and name.endswith("_blocks"):
            found[name.removesuffix("_blocks")] = _mxfp4(name, headers, path)
        elif header.dtype == "int32" and name.endswith(".weight_packed"):
            found[name.removesuffix("_packed")] = _integers(name, headers, path)
        elif header.dtype == "int8" and name.endswith(".weight"):
            found[name] = _two_in_a_byte(name, headers, path)
    return found


def as_values(headers: Mapping[str, Header], stored: Mapping[str, StoredTensor]) -> dict[str, Header]:
    """Return the headers of the model's tensors: those that are stored in few bits by their values."""
    parts = {name for each in stored.values() for name in each.parts}
    if stored:
        parts |= {name for name in headers if name.endswith(_OF_INFERENCE)}
    kept = {name: header for name, header in headers.items() if name not in parts}
    return kept | {name: each.header for name, each in stored.items()}


def _refuse(problem: str) -> ConversionError:
    return ConversionError(
        f"{problem}; convert a copy in bfloat16 or float32, whose config.json has no {CONFIG_FIELD}"
    )


def _block(config: Mapping[str, Any], place: str) -> int:
    size = config.get("weight_block_size") or [_PUBLISHED_BLOCK] * 2
    match size:
        case [int(rows), int(columns)] if rows == columns > 0:
            return rows
    raise _refuse(f"{place}: weight_block_size is {size!r}, not two equal numbers")


def _parts(headers: Mapping[str, Header], *names: str) -> dict[str, Header]:
    return {name: headers[name] for name in names}


def _beside(name: str) -> str:
    """X.scale of X.weight."""
    return f"{name.removesuffix('.weight')}.scale"


def _factors(
    name: str, headers: Mapping[str, Header], names: tuple[str, ...], path: Path
) -> tuple[str, Header]:
    for each in names:
        if each in headers:
            return each, headers[each]
    raise _refuse(f"{path}: {name} is in {headers[name].dtype} and has no {' or '.join(names)}")


def _misfit(name: str, scale: str, headers: Mapping[str, Header], path: Path) -> ConversionError:
    shapes = f"shape {list(headers[scale].shape)} for one of {list(headers[name].shape)}"
    return _refuse(f"{path}: the factors {scale} of {name} have {shapes}")


def _eight_bits(name: str, headers: Mapping[str, Header], block: int, path: Path) -> StoredTensor:
    header = headers[name]
    scale, factors = _factors(name, headers, (f"{name}_scale_inv", _beside(name)), path)
    *matrices, rows, columns = (1, 1, *header.shape)[-max(2, len(header.shape)) :]
    blocks = (*matrices, ceil(rows / block), ceil(columns / block))
    single = prod(factors.shape) == 1
    if not single and factors.shape != blocks:
        raise _misfit(name, scale, headers, path)

    def values(weight: Any, factor: Any) -> Any:
        import torch

        if single:
            return (weight.float() * factor.float().reshape(())).bfloat16()
        result = torch.empty(weight.shape, dtype=torch.bfloat16)
        bits, into = (each.reshape(-1, rows, columns) for each in (weight, result))
        for number, matrix in enumerate(factor.float().reshape(-1, *blocks[-2:])):
            for row, of_blocks in enumerate(matrix.repeat_interleave(block, 1)[:, :columns]):
                inside = slice(row * block, (row + 1) * block)
                into[number, inside] = bits[number, inside].float() * of_blocks
        return result

    return StoredTensor(Header(header.file, header.shape, DTYPE), _parts(headers, name, scale), values)


def _four_bits(packed: Any) -> Any:
    """The values of E2M1 of bytes, the lower half of each first, [..., n] -> [..., 2n] in float32."""
    import torch

    table = torch.tensor([*_FOUR_BITS, *(-value for value in _FOUR_BITS)])
    bits = packed.view(torch.uint8)
    return torch.stack([table[(bits & 15).int()], table[(bits >> 4).int()]], -1).flatten(-2)


def _mxfp4(name: str, headers: Mapping[str, Header], path: Path) -> StoredTensor:
    header = headers[name]
    scale, factors = _factors(name, headers, (f"{name.removesuffix('_blocks')}_scales",), path)
    if len(header.shape) != 4 or factors.shape != header.shape[:-1] or factors.dtype != "uint8":
        raise _misfit(name, scale, headers, path)
    experts, rows, groups, size = header.shape
    shape = (experts, groups * size * 2, rows)

    def values(blocks: Any, exponents: Any) -> Any:
        import torch

        result = torch.empty(shape, dtype=torch.bfloat16)
        for number in range(experts):  # one at a time: indices take more memory than the values
            powers = torch.exp2(exponents[number].float() - _EXPONENT_BIAS)
            result[number] = (_four_bits(blocks[number]) * powers[..., None]).reshape(rows, -1).T
        return result

    return StoredTensor(Header(header.file, shape, DTYPE), _parts(headers, name, scale), values)


def _in_groups(values: Any, factors: Any) -> Any:
    """Multiply each group of a row by its factor: [rows, n], [rows, groups] -> [rows, n] in bfloat16."""
    rows, columns = values.shape
    groups = factors.shape[1]
    scaled = values.reshape(rows, groups, columns // groups) * factors.float()[..., None]
    return scaled.reshape(rows, columns).bfloat16()


def _fits_groups(columns: int, header: Header, factors: Header) -> bool:
    return (
        len(header.shape) == len(factors.shape) == 2
        and factors.shape[0] == header.shape[0]
        and factors.shape[1] > 0
        and columns % factors.shape[1] == 0
    )


def _integers(name: str, headers: Mapping[str, Header], path: Path) -> StoredTensor:
    header, base = headers[name], name.removesuffix("_packed")
    scale, factors = _factors(name, headers, (f"{base}_scale",), path)
    shape, _ = _factors(name, headers, (f"{base}_shape",), path)
    columns = header.shape[-1] * 8
    if not _fits_groups(columns, header, factors):
        raise _misfit(name, scale, headers, path)

    def values(packed: Any, factor: Any, size: Any) -> Any:
        import torch

        if size.tolist() != [packed.shape[0], columns]:
            raise _refuse(f"{path}: {base}_shape is {size.tolist()} for {packed.shape[0]} x {columns} values")
        bits = torch.stack([(packed >> 4 * place) & 15 for place in range(8)], -1).flatten(-2)
        return _in_groups(bits.float() - 8, factor)

    size = (header.shape[0], columns)
    return StoredTensor(Header(header.file, size, DTYPE), _parts(headers, name, scale, shape), values)


def _two_in_a_byte(name: str, headers: Mapping[str, Header], path: Path) -> StoredTensor:
    header = headers[name]
    scale, factors = _factors(name, headers, (_beside(name),), path)
    columns = header.shape[-1] * 2
    if not _fits_groups(columns, header, factors):
        raise _misfit(name, scale, headers, path)
    size = (header.shape[0], columns)

    def values(packed: Any, factor: Any) -> Any:
        return _in_groups(_four_bits(packed), factor)

    return StoredTensor(Header(header.file, size, DTYPE), _parts(headers, name, scale), values)

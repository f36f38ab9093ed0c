"""Widths that linear layers in FP8 or FP4 must have on each rank."""

from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.training import TrainingSpec
from megatron_operator.planner.divisors import set_one_of
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds, ffn_of
from megatron_operator.planner.estimate.products import projections

_P: Final = "spec.parallelism."


def width_multiple(training: TrainingSpec) -> int:
    """What the widths of a quantized layer are multiples of on each rank; 1 without FP8 and FP4.

    Transformer Engine refuses others in the first step: `assert_dim_for_fp8_exec` and the leading dimensions
    in `cublaslt_gemm.cu` for 16, the sizes of blocks of `MXFP8Quantizer` and `NVFP4Quantizer`.
    """
    if training.fp8_format is None:
        return 1 if training.fp4_format is None else 16
    return 32 if training.fp8_recipe == "mxfp8" else 16


def quantized_width_errors(
    shape: ModelShape, dims: ParallelDims, multiple: int, tensor_sizes: list[int]
) -> list[FieldError]:
    """Errors for TP and ETP that leave a rank a width that Transformer Engine does not multiply.

    `tensor_sizes` are the TP sizes that all else allows.
    """
    errors = [
        _error(f"{_P}tensorModelParallelSize", "TP", dims.tp, named, multiple, tensor_sizes)
        for named in _split_widths(shape)
        if named[1] % dims.tp == 0 and named[1] // dims.tp % multiple
    ]
    if shape.experts and shape.expert_ffn % dims.etp == 0 and shape.expert_ffn // dims.etp % multiple:
        experts = ("moeFfnHiddenSize", shape.expert_ffn)
        errors.append(_error(f"{_P}expertTensorParallelSize", "ETP", dims.etp, experts, multiple, [1]))
    return errors


def _split_widths(shape: ModelShape) -> list[tuple[str, int]]:
    """Widths that TP splits, in elements, each with its field or layer."""
    kinds = distinct_kinds(shape)
    dense = {ffn_of(shape, kind) for kind in kinds if kind.feed_forward == "dense"}
    widths = [("ffnHiddenSize", width) for width in sorted(dense)]
    if shape.shared_ffn:
        widths.append(("moeSharedExpertIntermediateSize", shape.shared_ffn))
    for kind in kinds:
        if kind.scans:
            projected, read = projections(shape, kind)
            layer = "Mamba-2 layer" if kind.mixer in ("mamba", "parallel") else "gated delta net"
            widths += [(f"the input of a {layer},", projected), (f"the output of a {layer},", read)]
    return list(dict.fromkeys(widths))


def _error(
    field: str, group: str, ranks: int, named: tuple[str, int], multiple: int, sizes: list[int]
) -> FieldError:
    name, width = named
    suitable = [size for size in sizes if width % size == 0 and width // size % multiple == 0]
    leave = "leave training.fp8Format and fp4Format out"
    return FieldError(
        field,
        f"{group} {ranks} leaves a rank {width // ranks} of {name} {width}, and Transformer Engine "
        f"takes multiples of {multiple} in this precision",
        f"{set_one_of(suitable)}, or {leave}" if suitable else leave,
    )

"""Checks of FP4 matrix products: `training.fp4Format` and what belongs to it."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.hardware import Accelerator, with_block_scales

_FORMAT: Final = "spec.training.fp4Format"
_GATHER: Final = "spec.training.fp4ParamGather"
_RECIPE, _FACTORY = "fp4-recipe", "fp4-quantizer-factory"
_LEAVE: Final = "leave it out"


def four_bit_errors(resolved: ResolvedRecipe, accelerator: Accelerator | None) -> list[FieldError]:
    """Errors of FP4: what Megatron refuses beside it (`validate_args`), and what has no effect without it."""
    if resolved.training.fp4_format is None:
        return list(_without_format(resolved))
    return [*_format_errors(resolved, accelerator), *_scaling_errors(resolved)]


def _without_format(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    if resolved.training.fp4_param_gather:
        yield FieldError(_GATHER, "is set without fp4Format", f"set fp4Format: e2m1, or {_LEAVE}")
    for flag in (_RECIPE, _FACTORY):
        if flag in resolved.megatron_args:
            fix = f"set training.fp4Format: e2m1, or {_LEAVE}"
            yield FieldError(f"spec.megatronArgs.{flag}", "is set without training.fp4Format", fix)


def _format_errors(resolved: ResolvedRecipe, accelerator: Accelerator | None) -> Iterator[FieldError]:
    t = resolved.training
    if t.fp8_format is not None:
        yield FieldError(_FORMAT, f"is set together with fp8Format {t.fp8_format}", "set one of the two")
    if not t.bf16:
        message = f"{t.fp4_format} without bf16 would keep parameters in FP32"
        yield FieldError(_FORMAT, message, "set bf16: true")
    # Scales of blocks of 16 numbers are multiplied by Blackwell's tensor cores (`check_nvfp4_support`).
    if accelerator is not None and not accelerator.architecture.startswith("blackwell"):
        message = f"{t.fp4_format}: {accelerator.name} does not support FP4 matrix products"
        yield FieldError(_FORMAT, message, f"{_LEAVE}, or use {with_block_scales(accelerator)}")
    if t.transformer_impl == "local":
        message = "local, but FP4 requires Transformer Engine"
        fix = "set transformer_engine, or leave fp4Format out"
        yield FieldError("spec.training.transformerImpl", message, fix)
    if t.fp4_param_gather and resolved.parallelism.use_distributed_optimizer is False:
        message = "requires the distributed optimizer, which is off"
        fix = f"set parallelism.useDistributedOptimizer: true, or {_LEAVE}"
        yield FieldError(_GATHER, message, fix)


def _scaling_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """A scaling of one's own is a function in the image, which Megatron calls for `custom` alone."""
    args = resolved.megatron_args
    custom, factory = args.get(_RECIPE) == "custom", _FACTORY in args
    if custom and not factory:
        message, fix = f"custom requires {_FACTORY}", f"set {_FACTORY}, or {_LEAVE}"
        yield FieldError(f"spec.megatronArgs.{_RECIPE}", message, fix)
    if factory and not custom:
        message, fix = f"has no effect without {_RECIPE} custom", f"set {_RECIPE}: custom, or {_LEAVE}"
        yield FieldError(f"spec.megatronArgs.{_FACTORY}", message, fix)

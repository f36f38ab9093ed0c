"""Size of a checkpoint, in the format that Megatron writes (`torch_dist`, or `fsdp_dtensor`)."""

from collections.abc import Mapping
from typing import Any

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.status import Plan
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.model_shape import model_shape
from megatron_operator.planner.estimate.parameters import trained_parameters
from megatron_operator.planner.estimate.workload import kernel_has_master_weights

_WEIGHT = 2
"""A weight of a vision-language model, which is trained in BF16."""
_MAIN_WEIGHT = 4
"""Megatron FSDP saves the FP32 weights of the optimizer alone, in a model in FP32 too."""
_MOMENTS = 8
"""Adam's two moments. They are saved in FP32 also where they are kept in less."""


def checkpoint_bytes(resolved: ResolvedRecipe, plan: Plan) -> int | None:
    """Bytes of one checkpoint; None where the plan has no number of parameters. With LoRA, of its adapters.

    The padding of the optimizer's buckets, below 1 %, is left out. All ranks write, each into one file.
    """
    if plan.parameters_padded is None:
        return None
    shape = model_shape(resolved.model, Diagnostics())
    adapters = Adapters.of(resolved)
    saved = plan.parameters_padded
    if plan.use_megatron_fsdp:
        return saved * (_MAIN_WEIGHT + _MOMENTS)
    training, sharded = resolved.training, plan.use_distributed_optimizer
    each = bytes_per_parameter(training, resolved.megatron_args, sharded=sharded)
    if resolved.checkpoint.no_save_optim:
        each = 2 if training.bf16 or training.fp16 else 4
    if shape is not None and adapters is not None:
        return adapters.parameters(shape, plan.expert_model_parallel_size) * each
    if shape is not None and resolved.frozen:
        trained = trained_parameters(shape, resolved.frozen, saved)
        return saved * _WEIGHT + trained * (each - _WEIGHT)
    return saved * each


def bytes_per_parameter(training: TrainingSpec, args: Mapping[str, Any], *, sharded: bool) -> int:
    """Bytes of a parameter with its optimizer states. `sharded`: by the distributed optimizer.

    Source: what megatron-core 0.19.2 saves (`distrib_optimizer.py`, `optimizer.py`). A model in BF16 or FP16
    is saved with its FP32 master weights; the precision-aware optimizer, where it has them, saves the 16 bits
    of them that BF16 lacks. In FP32 the distributed optimizer saves the weights again, as its own part of
    them.
    """
    if not (training.bf16 or training.fp16):
        return (8 if sharded else 4) + _MOMENTS
    remainder = kernel_has_master_weights(training, args) and training.bf16
    in_fp32 = args.get("main-params-dtype", "fp32") == "fp32"
    return 2 + (2 if remainder and in_fp32 else 4) + _MOMENTS

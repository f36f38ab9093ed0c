"""Norms of Megatron's local layers under sequence parallelism, and with weights that are centred at zero.

Each rank of a tensor-parallel group computes the norms of its part of the sequence, so the gradient of a
norm's parameters is the sum over the group. Megatron adds those of parameters that are marked
(`_allreduce_non_tensor_model_parallel_grads` of megatron-core 0.19.2). Transformer Engine's norms mark
theirs; the local ones refuse sequence parallelism instead, and weights that are centred at zero.
"""

import copy
from typing import Any

import torch


def mark(config: Any, *parameters: torch.nn.Parameter) -> None:
    """Have Megatron add the gradients of `parameters` over the ranks that split a sequence, if any do."""
    for parameter in parameters:
        parameter.sequence_parallel = config.sequence_parallel


def install() -> None:
    """Have Megatron's local layers build such norms; call it once in a process."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    from megatron_trainer.platform.zero_centred_norms import ZeroCentredLayerNorm, ZeroCentredRMSNorm

    zero_centred = {"LayerNorm": ZeroCentredLayerNorm, "RMSNorm": ZeroCentredRMSNorm}
    inner: Any = WrappedTorchNorm.__new__

    def build(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        if config.layernorm_zero_centered_gamma and config.normalization in zero_centred:
            return zero_centred[config.normalization](config, *args, **kwargs)
        accepted = copy.copy(config)
        accepted.sequence_parallel = False
        norm = inner(cls, accepted, *args, **kwargs)
        mark(config, *norm.parameters())
        return norm

    WrappedTorchNorm.__new__ = build

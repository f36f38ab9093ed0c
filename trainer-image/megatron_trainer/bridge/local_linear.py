"""Linear layers and norms that only Transformer Engine has in Megatron, of Megatron's own parts."""

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.torch_norm import WrappedTorchNorm


class ZeroCentredRMSNorm(torch.nn.Module):
    """RMSNorm times (1 + weight), of inputs [..., hidden_size]; computed in FP32."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the norm of `inputs`, in their type."""
        wide = inputs.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * (1 + self.weight.float())).to(inputs.dtype)


def norm(config: Any) -> Any:
    """Return the class of the norms of a model."""
    return ZeroCentredRMSNorm if config.layernorm_zero_centered_gamma else WrappedTorchNorm


def _norm_of(config: Any, size: int) -> Any:
    return norm(config)(config=config, hidden_size=size, eps=config.layernorm_epsilon)


class NormColumnParallelLinear(ColumnParallelLinear):
    """A norm of the input, then a linear layer that is split by columns."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm = _norm_of(config, input_size)

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return output and bias, as ColumnParallelLinear does."""
        return super().forward(self.layer_norm(input_), *args, **kwargs)


class RowParallelLinearNorm(RowParallelLinear):
    """A linear layer that is split by rows, then a norm of the output; it has no bias."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = _norm_of(config, output_size)

    def forward(self, input_: torch.Tensor) -> Any:
        """Return the normed output, and None."""
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias

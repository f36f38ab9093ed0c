"""Norms whose weights are centred at zero, which torch does not have; computed in FP32."""

from typing import Any

import torch


class ZeroCentredRMSNorm(torch.nn.Module):
    """RMSNorm times (1 + weight), of inputs [..., hidden_size]."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the norm of `inputs`, in their type."""
        return rms_norm(inputs, 1 + self.weight.float(), self.eps)


class ZeroCentredLayerNorm(torch.nn.Module):
    """LayerNorm times (1 + weight), plus a bias, of inputs [..., hidden_size]."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the norm of `inputs`, in their type."""
        factor, bias = 1 + self.weight.float(), self.bias.float()
        normed = torch.nn.functional.layer_norm(inputs.float(), factor.shape, factor, bias, self.eps)
        return normed.to(inputs.dtype)


def rms_norm(inputs: torch.Tensor, factor: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMSNorm of `inputs` times `factor`, in the type of `inputs`."""
    wide = inputs.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * factor).to(inputs.dtype)

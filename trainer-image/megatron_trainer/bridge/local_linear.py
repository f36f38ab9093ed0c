"""Linear layers and norms that only Transformer Engine has in Megatron, of Megatron's own parts.

Their parameters have the names of Transformer Engine's, so that Bridge's mappings and checkpoints fit both.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from megatron_trainer.platform import split_norms
from megatron_trainer.platform.zero_centred_norms import ZeroCentredRMSNorm, rms_norm


def norm(config: Any) -> Any:
    """Return the class of the norms of a model."""
    return ZeroCentredRMSNorm if config.layernorm_zero_centered_gamma else WrappedTorchNorm


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """RMSNorm of the input, then a linear layer that is split by columns."""

    return_layernorm_output = False
    """Whether the output is a pair with the normed input, which adapters of the layer take."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self._zero_centred = bool(config.layernorm_zero_centered_gamma)
        self._eps = config.layernorm_epsilon
        fill = torch.zeros if self._zero_centred else torch.ones
        self.layer_norm_weight = torch.nn.Parameter(fill(input_size, dtype=config.params_dtype))
        split_norms.mark(config, self.layer_norm_weight)

    def forward(self, input_: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return output and bias, as ColumnParallelLinear does."""
        factor = self.layer_norm_weight.float() + self._zero_centred
        normed = rms_norm(input_, factor, self._eps)
        output, bias = super().forward(normed, *args, **kwargs)
        return ((output, normed) if self.return_layernorm_output else output), bias


class RowParallelLinearLayerNorm(RowParallelLinear):
    """A linear layer that is split by rows, then a norm of the output; it has no bias."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = norm(config)(
            config=config, hidden_size=output_size, eps=config.layernorm_epsilon
        )

    def forward(self, input_: torch.Tensor) -> Any:
        """Return the normed output, and None."""
        output, bias = super().forward(input_)
        return self.post_layernorm(output), bias


class DuplicatedLinear(torch.nn.Linear):
    """A linear layer that every tensor-parallel rank has as a whole."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[torch.Tensor], Any],
        bias: bool,
        **_: Any,
    ) -> None:
        super().__init__(input_size, output_size, bias=bias, dtype=config.params_dtype)
        split_norms.mark(config, *self.parameters())
        if config.perform_initialization:
            init_method(self.weight)

    def forward(self, input: torch.Tensor) -> Any:
        """Return the output with its bias, and None, as Megatron's layers do."""
        return super().forward(input), None


class LocalParts(LocalSpecProvider):
    """Megatron's own parts, with a norm in the linear layer behind it; zero-centred norms if the model's are.

    Parameters have the names of Transformer Engine's.
    """

    def __init__(self, config: Any) -> None:
        self._norm = norm(config)

    def fuse_layernorm_and_linear(self) -> bool:
        """Norms are in the linear layer."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """The linear layer with a norm of its input."""
        return LayerNormColumnParallelLinear

    def linear(self) -> type:
        """The linear layer that every tensor-parallel rank has as a whole."""
        return DuplicatedLinear

    def layer_norm(self, *_: Any, **__: Any) -> Any:
        """The norm of this model."""
        return self._norm

"""Latent attention of Megatron's local layers, whose core attention takes one width for queries and values.

From MLASelfAttention and get_gpt_layer_local_submodules of megatron-core 0.19.2.
"""

import functools
import inspect
from typing import Any

import torch


class TwoWidths(torch.nn.Module):
    """Have a core attention of Megatron's take `k_channels` and `v_channels`, which latent attention passes.

    They are the elements of a head's keys and values.
    """

    def __init__(
        self, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **kwargs: Any
    ) -> None:
        # The scale that follows from the former is passed as well, and values have the latter, if not more.
        del k_channels, v_channels
        super().__init__(*args, **kwargs)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Return the attention of queries; values of packed samples are padded to the width of these."""
        self.hidden_size_per_partition = value.shape[-1] * self.num_attention_heads_per_partition
        found: torch.Tensor = super().forward(query, key, value, *args, **kwargs)
        return found


def install() -> None:
    """Have Megatron build local layers of latent attention with it; call it once in a process."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class LatentAttention(TwoWidths, DotProductAttention):
        """Megatron's own."""

    inner = gpt_layer_specs.get_gpt_layer_local_submodules
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def with_latent_attention(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        layer = inner(*args, **kwargs)
        if given.arguments["multi_latent_attention"]:
            layer.self_attention.submodules.core_attention = LatentAttention
        return layer

    gpt_layer_specs.get_gpt_layer_local_submodules = with_latent_attention

"""Gemma 4's attention, whose tokens of one image attend to all others of it in layers with a window."""

import copy
from typing import Any

import torch
from megatron.core.transformer.dot_product_attention import DotProductAttention


class PartlyCausalAttention(DotProductAttention):
    """As in transformers: most layers see a window of what is before, and the rest of an image."""

    def __init__(self, config: Any, layer_number: int, *args: Any, **kwargs: Any) -> None:
        self._window = _window(config, layer_number)
        own = copy.deepcopy(config)
        own.window_size = None
        super().__init__(own, layer_number, *args, **kwargs)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the attention of queries [positions, batch, heads, elements].

        `attention_mask` [batch, 1, positions, positions] is False for what is before a position, and for all
        of the image that the position is in.
        """
        positions = torch.arange(len(query), device=query.device)
        behind = positions[:, None] - positions
        if self._window is None:
            blocked = (behind < 0).expand_as(attention_mask)
        else:
            blocked = attention_mask | (behind >= self._window)
        return super().forward(query, key, value, blocked, *args, **kwargs)


def _window(config: Any, layer_number: int) -> int | None:
    """Tokens that a layer sees, itself among them; None where it sees all. Layers are counted from 1.

    Bridge has windows of dense models in Megatron's form, and those of models with experts in Gemma 3's.
    """
    from megatron.bridge.models.gemma.gemma3_provider import _is_local_attn_layer
    from megatron.bridge.models.gemma.modeling_gemma4 import _is_gemma4_sliding_layer

    if isinstance(config.window_size, tuple):
        return config.window_size[0] + 1 if _is_gemma4_sliding_layer(config, layer_number) else None
    local = _is_local_attn_layer(layer_number, config.interleaved_attn_pattern)
    return int(config.window_size) if local else None

"""Attention without Transformer Engine that keeps the samples of a packed sequence apart."""

from typing import Any

import torch
from megatron.core.transformer.dot_product_attention import DotProductAttention


class PackedAttention(torch.nn.Module):
    """Have a core attention of Megatron's, which takes no packed samples, attend within each sample."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        packed_seq_params: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the attention of queries [positions, batch, heads, elements].

        With `packed_seq_params`, of queries, keys and values [positions, heads, elements] of samples that
        follow each other, as [positions, heads * elements]; a mask is not read then. The last end of
        `cu_seqlens_q` is the number of positions.
        """
        attend = super().forward
        if packed_seq_params is None:
            found: torch.Tensor = attend(query, key, value, attention_mask, *args, **kwargs)
            return found
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        samples = zip(*(part.unsqueeze(1).split(lengths) for part in (query, key, value)), strict=True)
        # Bridge fills up the ends of a batch with samples of no length.
        outputs = [
            attend(*sample, _causal_mask(length, query.device), *args, **kwargs)
            for length, sample in zip(lengths, samples, strict=True)
            if length
        ]
        return torch.cat(outputs).squeeze(1)


def _causal_mask(length: int, device: torch.device) -> torch.Tensor:
    """Return [1, 1, length, length], True where a position (third) would attend to one behind it."""
    whole = torch.ones((1, 1, length, length), dtype=torch.bool, device=device)
    return whole.triu(1)


class PackedDotProductAttention(PackedAttention, DotProductAttention):
    """Megatron's own, of packed samples too."""

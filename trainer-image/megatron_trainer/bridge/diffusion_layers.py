"""Layers of Wan and FLUX of Megatron's own parts; Megatron-Bridge builds them of Transformer Engine."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import scaled_dot_product_attention


def install() -> None:
    """Have Bridge's diffusion models built, and their sequences split, without Transformer Engine."""
    from megatron.bridge.diffusion.models.common import dit_attention
    from megatron.bridge.diffusion.models.flux import flux_attention, flux_layer_spec
    from megatron.bridge.diffusion.models.wan import utils, wan_layer_spec

    for module in (flux_layer_spec, wan_layer_spec):
        parts: Any = module
        parts.TEColumnParallelLinear, parts.TERowParallelLinear = ColumnParallelLinear, RowParallelLinear
        parts.TEDotProductAttention, parts.TENorm = AttentionWithinSamples, WrappedTorchNorm
    for module in (dit_attention, flux_attention):
        # A function of Transformer Engine; without it they take torch.split.
        module.SplitAlongDim = None
    utils.get_thd_cp_partition_indices = positions_of_rank


def positions_of_rank(
    cu_seqlens: torch.Tensor, *, cp_group: Any, device: torch.device, **_: Any
) -> torch.Tensor:
    """Return the positions [tokens / ranks] of packed samples that a context-parallel rank has.

    Of each sample, cut into twice as many parts as there are ranks, rank r has the parts r and -r - 1, as
    Transformer Engine's `thd_get_partitioned_indices` does.
    """
    return _positions(cu_seqlens, cp_group.rank(), cp_group.size()).to(device)


def _positions(cu_seqlens: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    own = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        parts = torch.arange(start, end).chunk(2 * ranks)
        own += [parts[rank], parts[-rank - 1]]
    return torch.cat(own)


class AttentionWithinSamples(MegatronModule):
    """Attention without a mask, of packed samples each to itself or to its own text.

    With context parallelism each rank has all keys and values, and attends with its own queries. To what
    samples are padded with, none is paid.
    """

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        super().__init__(config=config)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        packed_seq_params: Any = None,
        **__: Any,
    ) -> torch.Tensor:
        """Return the attention of queries, which may be of other positions than keys and values.

        Packed: [positions, heads, elements] of all samples to [positions, heads * elements]. Else
        [positions, batch, heads, elements] to [positions, batch, heads * elements].
        """
        if packed_seq_params is None:
            # To torch's order: batch, heads, positions.
            parts = (part.permute(1, 2, 0, 3) for part in (query, key, value))
            return scaled_dot_product_attention(*parts).permute(2, 0, 1, 3).flatten(2)
        ranks = parallel_state.get_context_parallel_world_size()
        ends = packed_seq_params.cu_seqlens_kv_padded
        queries = query.split((packed_seq_params.cu_seqlens_q_padded.diff() // ranks).tolist())
        keys, values = (_of_all_ranks(part, ends, ranks).split(ends.diff().tolist()) for part in (key, value))
        lengths = packed_seq_params.cu_seqlens_kv.diff().tolist()
        attended = []
        for own, of_keys, of_values, length in zip(queries, keys, values, lengths, strict=True):
            sample = (own, of_keys[:length], of_values[:length])
            attended.append(scaled_dot_product_attention(*(part.transpose(0, 1) for part in sample)))
        return torch.cat(attended, 1).transpose(0, 1).flatten(1)


def _of_all_ranks(own: torch.Tensor, cu_seqlens: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the positions of all context-parallel ranks in their order."""
    if ranks == 1:
        return own
    gathered = torch.cat(all_gather(own.contiguous(), group=parallel_state.get_context_parallel_group()))
    order = torch.cat([_positions(cu_seqlens, rank, ranks) for rank in range(ranks)])
    return gathered[order.argsort()]

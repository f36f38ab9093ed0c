"""Attention of DeepSeek-V4 for Megatron-Bridge, which Megatron Core 0.19.2 lacks (`dsv4_hybrid`).

Follows `DeepseekV4Attention` of transformers 5.23. Each query attends to the latest tokens, and in most
layers to entries that each stand for several earlier tokens: to all that are complete (rate 128), or to those
that an indexer selects (rate 4). Modules have the names by which Megatron-Bridge 0.6.2 maps the weights.
"""

import math
from typing import Any, Final

import torch
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (
    _yarn_find_correction_range,
    _yarn_linear_ramp_mask,
)
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from megatron_trainer.bridge.local_linear import DuplicatedLinear

OVERLAPPING: Final = 4
"""The compression rate whose entries also stand for the tokens before theirs; the others select none."""
IN_FP32: Final = "_keep_in_float32_parameter_names"
"""Attribute by which Bridge keeps parameters of a module in FP32."""


class FP32Norm(torch.nn.Module):
    """RMSNorm of inputs [..., hidden_size] with a weight in FP32, as transformers keeps it."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=torch.float32))
        self.sequence_parallel = config.sequence_parallel
        setattr(self, IN_FP32, ("weight",))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the norm of `inputs`, in their type."""
        return (self.weight * unit_scale(inputs.float(), self.eps)).to(inputs.dtype)


def unit_scale(inputs: torch.Tensor, eps: float) -> torch.Tensor:
    """Return inputs [..., elements] divided by their root mean square."""
    return inputs * torch.rsqrt(inputs.float().square().mean(-1, keepdim=True) + eps).to(inputs.dtype)


def linear(config: Any, inputs: int, outputs: int) -> DuplicatedLinear:
    """A linear layer without bias, whole on each rank."""
    return DuplicatedLinear(inputs, outputs, config=config, init_method=config.init_method, bias=False)


def fp32_zeros(*shape: int) -> torch.nn.Parameter:
    """A parameter that is kept in FP32."""
    return torch.nn.Parameter(torch.zeros(*shape, dtype=torch.float32))


def frequencies(config: Any, *, compressed: bool) -> torch.Tensor:
    """Return the angle [rotated elements / 2] of one position, in FP32; long ones by YaRN if `compressed`."""
    width = config.qk_pos_emb_head_dim
    base = config.csa_compress_rotary_base if compressed else config.rotary_base
    angles = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if not compressed or config.rotary_scaling_factor == 1.0:
        return angles
    first, last = _yarn_find_correction_range(
        config.beta_fast, config.beta_slow, width, base, config.original_max_position_embeddings
    )
    interpolated = _yarn_linear_ramp_mask(first, last, width // 2, angles.device)
    return angles * (1 - interpolated) + angles / config.rotary_scaling_factor * interpolated


def rotate(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of neighbours at the end of states [..., elements] by angles [..., rotated / 2]."""
    width = 2 * angles.shape[-1]
    first, second = states[..., -width::2].float(), states[..., -width + 1 :: 2].float()
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((states[..., :-width], pairs.flatten(-2).to(states.dtype)), dim=-1)


class Compressor(MegatronModule):
    """Makes one entry of each `rate` tokens, a sum weighted by a softmax over them."""

    def __init__(self, config: Any, rate: int, width: int) -> None:
        super().__init__(config)
        self.rate, self.width = rate, width
        outputs = 2 * width if rate == OVERLAPPING else width
        self.linear_wkv = linear(config, config.hidden_size, outputs)
        self.linear_wgate = linear(config, config.hidden_size, outputs)
        self.ape = fp32_zeros(rate, outputs)
        self.norm = FP32Norm(config, width, config.layernorm_epsilon)
        setattr(self, IN_FP32, ("ape",))

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return entries [batch, tokens // rate, width] of hidden states [batch, tokens, hidden_size].

        `angles` [tokens, rotated elements / 2] of all positions.
        """
        count = hidden.shape[1] // self.rate
        used = hidden[:, : count * self.rate]
        shape = (len(hidden), count, self.rate, -1 if count else self.ape.shape[1])
        values = self.linear_wkv(used)[0].view(shape)
        gates = self.linear_wgate(used)[0].view(shape) + self.ape
        if self.rate == OVERLAPPING:
            values = torch.cat((_of_window_before(values, self.width, 0.0), values[..., self.width :]), 2)
            gates = torch.cat((_of_window_before(gates, self.width, -math.inf), gates[..., self.width :]), 2)
        weights = gates.softmax(dim=2, dtype=torch.float32).to(values.dtype)
        entries = self.norm((values * weights).sum(dim=2))
        return rotate(entries, angles[: count * self.rate : self.rate])


def _of_window_before(values: torch.Tensor, width: int, missing: float) -> torch.Tensor:
    """Return the first `width` elements of values [batch, windows, rate, elements] of the window before."""
    return pad(values[..., :width], (0, 0, 0, 0, 1, 0), value=missing)[:, : values.shape[1]]


class Indexer(MegatronModule):
    """Selects entries for each query. It is not trained: choosing passes on no gradient."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.heads, self.width = config.dsa_indexer_n_heads, config.dsa_indexer_head_dim
        self.linear_wq_b = linear(config, config.q_lora_rank, self.heads * self.width)
        self.linear_weights_proj = linear(config, config.hidden_size, self.heads)
        self.compressor = Compressor(config, OVERLAPPING, self.width)
        self.requires_grad_(False)

    def forward(
        self, hidden: torch.Tensor, low_rank: torch.Tensor, angles: torch.Tensor, complete: torch.Tensor
    ) -> torch.Tensor:
        """Return which entries [batch, tokens, entries] each query attends to, of those `complete` for it.

        `hidden` [batch, tokens, hidden_size], `low_rank` [batch, tokens, q_lora_rank].
        """
        with torch.no_grad():
            return self._select(hidden, low_rank, angles, complete)

    def _select(
        self, hidden: torch.Tensor, low_rank: torch.Tensor, angles: torch.Tensor, complete: torch.Tensor
    ) -> torch.Tensor:
        entries = self.compressor(hidden, angles)
        queries = rotate(
            self.linear_wq_b(low_rank)[0].unflatten(-1, (self.heads, self.width)), angles[:, None]
        )
        scores = torch.einsum("bshd,btd->bsht", queries.float(), entries.float()).relu_()
        weights = self.linear_weights_proj(hidden)[0].float() * (self.heads * self.width) ** -0.5
        total = torch.einsum("bsht,bsh->bst", scores, weights).masked_fill(~complete, -math.inf)
        best = total.topk(min(self.config.dsa_indexer_topk, total.shape[-1]), dim=-1).indices
        return torch.zeros_like(total, dtype=torch.bool).scatter_(-1, best, True) & complete


class CompressedAttention(MegatronModule):
    """Attention of all heads to one head of keys, which are the values as well, and to a learned sink."""

    def __init__(self, config: Any, rate: int) -> None:
        super().__init__(config)
        self.window, self.rate = config.csa_window_size, rate
        self.attn_sink = fp32_zeros(config.num_attention_heads)
        setattr(self, IN_FP32, ("attn_sink",))
        if rate:
            self.compressor = Compressor(config, rate, config.v_head_dim)
        if rate == OVERLAPPING:
            self.indexer = Indexer(config)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        hidden: torch.Tensor,
        low_rank: torch.Tensor,
        angles: torch.Tensor,
    ) -> torch.Tensor:
        """Return the attention of queries [batch, tokens, heads, elements], in their shape.

        `keys` [batch, tokens, elements]; the others are those of `Indexer.forward`.
        """
        entries, seen = keys[:, :0], keys.new_zeros(*keys.shape[:2], 0, dtype=torch.bool)
        if self.rate:
            entries = self.compressor(hidden, angles)
            positions = torch.arange(1, keys.shape[1] + 1, device=keys.device)
            numbers = torch.arange(entries.shape[1], device=keys.device)
            seen = (numbers < (positions // self.rate)[:, None]).expand(len(keys), -1, -1)
            if self.rate == OVERLAPPING:
                seen = self.indexer(hidden, low_rank, angles, seen)
        # Probabilities take the most memory of a layer, so they are computed again in the backward pass.
        output: torch.Tensor = checkpoint(self._attend, queries, keys, entries, seen, use_reentrant=False)
        return output

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, entries: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        """Each block of queries, as many as the window is long, sees its own keys and the block's before."""
        tokens, window = queries.shape[1], self.window
        rest = -tokens % window
        blocks = pad(queries, (0, 0, 0, 0, 0, rest)).unflatten(1, (-1, window))
        near = pad(keys, (0, 0, window, rest)).unfold(1, 2 * window, window)
        seen = pad(seen, (0, 0, 0, rest)).unflatten(1, (-1, window))
        scale = queries.shape[-1] ** -0.5
        to_near = torch.einsum("bnqhd,bndk->bnhqk", blocks, near).float() * scale
        to_entries = torch.einsum("bnqhd,btd->bnhqt", blocks, entries).float() * scale
        query = torch.arange(window, device=keys.device)[:, None]
        key = torch.arange(2 * window, device=keys.device)
        of_window = (key > query) & (key <= query + window)
        first = torch.arange(blocks.shape[1], device=keys.device)[:, None, None] == 0
        of_window = of_window & ~(first & (key < window))
        scores = torch.cat(
            (
                to_near.masked_fill(~of_window[:, None], -math.inf),
                to_entries.masked_fill(~seen[:, :, None], -math.inf),
                self.attn_sink[:, None, None].expand(*to_near.shape[:-1], 1),
            ),
            dim=-1,
        )
        weights = scores.softmax(dim=-1).to(keys.dtype)
        of_near, of_entries = weights[..., : 2 * window], weights[..., 2 * window : -1]
        output = torch.einsum("bnhqk,bndk->bnqhd", of_near, near)
        output = output + torch.einsum("bnhqt,btd->bnqhd", of_entries, entries)
        return output.flatten(1, 2)[:, :tokens]


class DeepseekV4Attention(MegatronModule):
    """Attention of a layer with its projections. `rate`: tokens of an entry; 0 without entries."""

    def __init__(self, config: Any, rate: int) -> None:
        super().__init__(config)
        self.rate = rate
        self.heads, self.width = config.num_attention_heads, config.v_head_dim
        hidden, rank, eps = config.hidden_size, config.q_lora_rank, config.layernorm_epsilon
        self.linear_q_down_proj = linear(config, hidden, rank)
        self.q_layernorm = FP32Norm(config, rank, eps)
        self.linear_q_up_proj = linear(config, rank, self.heads * self.width)
        self.linear_kv_proj = linear(config, hidden, self.width)
        self.kv_layernorm = FP32Norm(config, self.width, eps)
        self.core_attention = CompressedAttention(config, rate)
        grouped = (config.o_groups * config.o_lora_rank, self.heads * self.width // config.o_groups)
        self.linear_o_group_proj = torch.nn.Parameter(torch.empty(grouped, dtype=config.params_dtype))
        if config.perform_initialization:
            config.init_method(self.linear_o_group_proj)
        self.linear_proj = linear(config, grouped[0], hidden)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the output, like hidden states [tokens, batch, hidden_size]."""
        config = self.config
        hidden = hidden_states.transpose(0, 1)
        positions = torch.arange(hidden.shape[1], dtype=torch.float32, device=hidden.device)
        angles = positions[:, None] * frequencies(config, compressed=self.rate > 0).to(hidden.device)
        low_rank = self.q_layernorm(self.linear_q_down_proj(hidden)[0])
        queries = self.linear_q_up_proj(low_rank)[0].unflatten(-1, (self.heads, self.width))
        queries = rotate(unit_scale(queries, config.layernorm_epsilon), angles[:, None])
        keys = rotate(self.kv_layernorm(self.linear_kv_proj(hidden)[0]), angles)
        output = self.core_attention(queries, keys, hidden, low_rank, angles)
        # Values are the rotated keys.
        output = rotate(output, -angles[:, None]).flatten(2).unflatten(2, (config.o_groups, -1))
        weights = self.linear_o_group_proj.unflatten(0, (config.o_groups, -1))
        mixed = torch.einsum("bsgi,goi->bsgo", output, weights).flatten(2)
        projected: torch.Tensor = self.linear_proj(mixed)[0]
        return projected.transpose(0, 1)

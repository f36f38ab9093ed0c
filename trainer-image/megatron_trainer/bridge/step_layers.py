"""Layers of Step-3.5 and Step-3.7: a gate for each head, and heads and rotary embedding of each layer.

Layers with a window have other heads than those without, and rotate another part of a head with another base.
Megatron Core 0.19.2 has gates of the attention's width alone, and one rotary embedding for all layers. The
formulas are those of transformers 5.23 (`transformers.models.step3p7`).
"""

import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_decoder_layer_specs
from megatron.core.transformer import TransformerLayer
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import get_pg_rank
from torch.nn.functional import silu

from megatron_trainer.bridge.local_linear import norm

SLIDING: Final = "sliding_attention"


class StepLayer(TransformerLayer):
    """A layer with the heads, the window, the rotary embedding and the bounds of its number."""

    def __init__(
        self,
        config: Any,
        submodules: Any,
        layer_number: int = 1,
        *,
        pg_collection: Any,
        vp_stage: int | None = None,
        is_mtp_layer: bool = False,
        **kwargs: Any,
    ) -> None:
        if is_mtp_layer:
            before = config.num_layers
        else:
            before = get_transformer_layer_offset(config, vp_stage, get_pg_rank(pg_collection.pp))
        number = before + layer_number - 1
        own = copy.copy(config)
        own.attention_output_gate = True
        kind = config.layer_types[number]
        own.rope_of_layer = config.rope_of_kinds[kind]
        own.window_size = None
        if kind == SLIDING:
            own.num_attention_heads = config.sliding_attention_setting["num_attention_heads"]
            own.window_size = tuple(config.sliding_attention_setting["window_size"])
        bounds = [_bound(values, number) for values in (config.swiglu_limits, config.swiglu_limits_shared)]
        if any(bounds):
            own.use_te_activation_func, own.bias_activation_fusion = True, False
            submodules = replace(submodules, mlp=_bounded(submodules.mlp, *bounds))
        super().__init__(
            own,
            submodules,
            layer_number,
            pg_collection=pg_collection,
            vp_stage=vp_stage,
            is_mtp_layer=is_mtp_layer,
            **kwargs,
        )


def _bound(bounds: list[float | None] | None, number: int) -> float | None:
    """The bound of a layer; layers of multi-token prediction have none."""
    return (bounds[number] or None) if bounds and number < len(bounds) else None


def _bounded(mlp: Any, of_experts: float | None, of_others: float | None) -> Any:
    """Return what builds the same MLP, or experts, with bounds. `of_others`: shared experts and MLPs."""
    parts = mlp.keywords["submodules"]
    if isinstance(parts, MoESubmodules):
        parts = replace(
            parts,
            experts=_with_bound(parts.experts, of_experts),
            shared_experts=_with_bound(parts.shared_experts, of_others),
        )
        return partial(mlp, submodules=parts)
    return _with_bound(mlp, of_others)


def _with_bound(mlp: Any, bound: float | None) -> Any:
    parts = replace(mlp.keywords["submodules"], activation_func=partial(BoundedSwiGLU, bound))
    return partial(mlp, submodules=parts)


class BoundedSwiGLU(torch.nn.Module):
    """SwiGLU whose gate is bounded behind its activation, and the other half on both sides.

    Megatron's own bound (`activation_func_clamp_value`) is in front of the activation.
    """

    def __init__(self, bound: float | None, *, config: Any) -> None:
        del config
        super().__init__()
        self._bound = bound

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., width] for gate and other half [..., 2 * width]."""
        gate, other = inputs.chunk(2, dim=-1)
        gate = silu(gate)
        if self._bound is not None:
            gate, other = gate.clamp(max=self._bound), other.clamp(-self._bound, self._bound)
        return gate * other


class StepAttention(SelfAttention):
    """Attention with a gate for each head, whose rows follow the values of their group in `linear_qkv`.

    So a tensor-parallel rank has the gates of its own heads, and a checkpoint can be split otherwise.
    """

    def __init__(self, config: Any, submodules: Any, *args: Any, **kwargs: Any) -> None:
        into, groups, width = submodules.linear_qkv, config.num_query_groups, config.kv_channels
        rows = config.num_attention_heads * (width + 1) + 2 * groups * width

        def with_gates(inputs: int, _outputs: int, **settings: Any) -> Any:
            return into(inputs, rows, **settings)

        super().__init__(config, replace(submodules, linear_qkv=with_gates), *args, **kwargs)
        if groups % self.world_size:
            raise ValueError(
                f"{groups} groups of queries cannot be split over {self.world_size} tensor-parallel ranks"
            )
        self.linear_qkv_out_dim = rows
        self._frequencies = frequencies(config.rope_of_layer, width)

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, rotary_pos_emb: torch.Tensor, **kwargs: Any
    ) -> Any:
        """Return output and bias of hidden states [positions, batch, hidden_size].

        `rotary_pos_emb` [positions, 1, 1, elements] of any layer: its first element is the position.
        """
        self._frequencies = self._frequencies.to(rotary_pos_emb.device)
        angles = rotary_pos_emb[..., :1] * self._frequencies
        rotary = torch.cat((angles, angles), dim=-1)
        return super().forward(hidden_states, *args, rotary_pos_emb=rotary, **kwargs)

    def get_query_key_value_tensors(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return queries, keys and values [positions, batch, heads, elements], and gates without elements."""
        mixed, _ = self.linear_qkv(hidden_states)
        width, groups = self.hidden_size_per_attention_head, self.num_query_groups_per_partition
        heads = self.num_attention_heads_per_partition // groups
        of_groups = mixed.view(*mixed.shape[:2], groups, -1)
        query, key, value, gate = of_groups.split([heads * width, width, width, heads], dim=-1)
        query = self.q_layernorm(query.reshape(*mixed.shape[:2], -1, width))
        return query, self.k_layernorm(key), value, gate.reshape(*mixed.shape[:2], -1)

    def _apply_output_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return outputs `x` [positions, batch, heads * elements] times the gates of their heads."""
        of_heads = x.view(*gate.shape, -1)
        return (of_heads * gate.float().sigmoid()[..., None]).to(x.dtype).view(x.shape)


def frequencies(rope: dict[str, Any], width: int) -> torch.Tensor:
    """Return the frequencies of the rotated elements of heads of `width`, by config.json's rope parameters.

    Those of `rope_type` llama3 are scaled. The first is 1 with either type.
    """
    rotated = int(width * rope.get("partial_rotary_factor", 1.0))
    found = 1.0 / (rope["rope_theta"] ** (torch.arange(0, rotated, 2, dtype=torch.float) / rotated))
    if rope["rope_type"] == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        found = RotaryEmbedding._apply_scaling(None, found, **{name: rope[name] for name in names})
    return found


def step_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers of Transformer Engine."""
    return _of_step(config, vp_stage, transformer_engine=True)


def local_step_layers(config: Any, vp_stage: int | None = None) -> Any:
    """Return the layers without Transformer Engine."""
    block = _of_step(config, vp_stage, transformer_engine=False)
    block.layer_norm = norm(config)
    for layer in (*block.layer_specs, block.layer_specs[-1]):
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = norm(config)
        heads = parts.self_attention.submodules
        heads.q_layernorm = heads.k_layernorm = norm(config)
    return block


def _of_step(config: Any, vp_stage: int | None, *, transformer_engine: bool) -> Any:
    """All layers of a stage; those of multi-token prediction have no experts."""
    from megatron_trainer.bridge.family_layers import LayersBeforePrediction

    kind: dict[str, Any] = {
        "use_transformer_engine": transformer_engine,
        "normalization": config.normalization,
    }
    block = get_gpt_decoder_block_spec(config, vp_stage=vp_stage, **kind)
    plain = copy.copy(config)
    plain.num_moe_experts, plain.moe_layer_freq = None, [0] * config.num_layers
    dense = get_gpt_decoder_layer_specs(plain, **kind)[0]
    for layer in (*block.layer_specs, dense):
        layer.module = StepLayer
        layer.submodules.self_attention.module = StepAttention
    block.layer_specs = LayersBeforePrediction(block.layer_specs, dense)
    return block

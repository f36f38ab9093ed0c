"""Layers of families that Megatron-Bridge builds of Transformer Engine only, of Megatron's own parts."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec as experimental_attention,
)
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer import ModuleSpec, TransformerLayer, TransformerLayerSubmodules
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

from megatron_trainer.bridge.deepseek_v4_layers import deepseek_v4_layers
from megatron_trainer.bridge.falcon_h1 import falcon_h1_stack
from megatron_trainer.bridge.hybrid_layers import hybrid_layers
from megatron_trainer.bridge.llama_nemotron import heterogeneous
from megatron_trainer.bridge.local_layers import layers_to_pretrain, local_layers
from megatron_trainer.bridge.local_linear import (
    LayerNormColumnParallelLinear,
    RowParallelLinearLayerNorm,
    norm,
)
from megatron_trainer.bridge.packed_attention import PackedAttention, PackedDotProductAttention
from megatron_trainer.bridge.partly_causal_attention import PartlyCausalAttention
from megatron_trainer.bridge.step_layers import local_step_layers, step_layers

type Layers = Callable[..., Any]


def build_locally(model: Any, *, loads_weights: bool) -> None:
    """Have a model's configuration build its layers without Transformer Engine.

    `loads_weights`: whether the model takes weights that it has not trained itself.
    """
    if hasattr(model, "hybrid_stack_spec"):
        model.hybrid_stack_spec = hybrid_layers
    elif hasattr(model, "falconh1_stack_spec"):
        model.falconh1_stack_spec = falcon_h1_stack
    else:
        model.transformer_layer_spec = instead_of(model.transformer_layer_spec, loads_weights=loads_weights)


def instead_of(layers: object, *, loads_weights: bool) -> Layers:
    """Return what builds the same layers as Bridge's function `layers`, without Transformer Engine."""
    others = local_layers if loads_weights else layers_to_pretrain
    function = layers.func if isinstance(layers, functools.partial) else layers
    return _FAMILIES.get(getattr(function, "__name__", ""), others)


def _layer(attention: Any, core_attention: Any, into: Any, head_norm: Any) -> Any:
    """A layer with a norm behind attention and MLP. `into`: the linear layer that begins each of the two."""
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=ModuleSpec(
                module=attention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=into,
                    core_attention=core_attention,
                    linear_proj=RowParallelLinearLayerNorm,
                    q_layernorm=head_norm,
                    k_layernorm=head_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            mlp=ModuleSpec(
                module=MLP, submodules=MLPSubmodules(linear_fc1=into, linear_fc2=RowParallelLinearLayerNorm)
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _block(config: Any, vp_stage: int | None, *parts: Any) -> Any:
    """All layers of a stage, of the parts that `_layer` takes."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[_layer(*parts)] * count, layer_norm=norm(config))


def exaone4(config: Any, vp_stage: int | None = None) -> Any:
    """Norms behind attention and MLP only, and of every head."""
    return _block(
        config, vp_stage, SelfAttention, PackedDotProductAttention, ColumnParallelLinear, norm(config)
    )


def exaone45_layer(config: Any) -> Any:
    """A layer as EXAONE 4.0's; Bridge repeats it, also for multi-token prediction."""
    return _layer(SelfAttention, PackedDotProductAttention, ColumnParallelLinear, norm(config))


def exaone_moe(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers; those of multi-token prediction have no experts."""
    block = local_layers(config, vp_stage)
    if config.mtp_num_layers:
        dense = copy.copy(config)
        dense.num_moe_experts, dense.moe_layer_freq = None, [0] * config.num_layers
        block.layer_specs = LayersBeforePrediction(block.layer_specs, local_layers(dense).layer_specs[0])
    return block


class LayersBeforePrediction(list[Any]):
    """Layers of a model, the last of which is another one for Megatron's layers of multi-token prediction."""

    def __init__(self, layers: list[Any], of_prediction: Any) -> None:
        super().__init__(layers)
        self._of_prediction = of_prediction

    def __getitem__(self, index: Any) -> Any:
        # Megatron asks for [-1] where it builds prediction, and nowhere else.
        return self._of_prediction if index == -1 else super().__getitem__(index)


def gemma2(config: Any, vp_stage: int | None = None) -> Any:
    """Norms before and behind attention and MLP."""
    # Without torch's FlexAttention, which has no backward pass on a CPU.
    from megatron.bridge.models.gemma.gemma2_provider import Gemma2DotProductAttention

    class Gemma2Attention(PackedAttention, Gemma2DotProductAttention):
        """Gemma 2's own, of packed samples too."""

    core = Gemma2Attention
    return _block(config, vp_stage, SelfAttention, core, LayerNormColumnParallelLinear, None)


def gemma3(config: Any, vp_stage: int | None = None) -> Any:
    """Like Gemma 2's, with norms of every head, and windows of the sequence."""
    from megatron.bridge.models.gemma.gemma3_provider import Gemma3SelfAttention

    core = WindowedAttention
    return _block(config, vp_stage, Gemma3SelfAttention, core, LayerNormColumnParallelLinear, norm(config))


class WindowedAttention(PackedDotProductAttention):
    """Gemma 3's: most layers see a window of the sequence, one of several sees all of it."""

    def __init__(self, config: Any, layer_number: int, *args: Any, **kwargs: Any) -> None:
        from megatron.bridge.models.gemma.gemma3_provider import _is_local_attn_layer

        local = _is_local_attn_layer(layer_number, config.interleaved_attn_pattern)
        own = copy.deepcopy(config)
        # Beside images the bias has the windows as well.
        windowed = local and not config.is_vision_language
        own.window_size = (config.window_size - 1, 0) if windowed else None
        super().__init__(own, layer_number, *args, **kwargs)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        attention_bias: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the attention of queries [positions, batch, heads, elements].

        `attention_bias` [batch, 1, positions, positions] is 0 where attention is paid, else the least number.
        """
        if attention_bias is not None:
            attention_mask = attention_bias < 0
        return super().forward(query, key, value, attention_mask, *args, **kwargs)


def gemma4(config: Any, vp_stage: int | None = None) -> Any:
    """Gemma 4's layers with experts: heads of two widths, and a norm behind attention."""
    from megatron.bridge.models.gemma.modeling_gemma4 import gemma4_block_spec

    block = gemma4_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = IdentityOp
        parts = layer.submodules.self_attention.submodules
        parts.linear_qkv = LayerNormColumnParallelLinear
        parts.core_attention = PartlyCausalAttention
        parts.linear_proj = RowParallelLinearLayerNorm
    return block


def ministral3(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers, whose queries grow behind the positions that the model was first trained on."""
    block = local_layers(config, vp_stage)
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = GrowingAttention
    return block


class GrowingAttention(DotProductAttention):
    """Ministral 3's: queries times 1 + beta * log(1 + floor(position / first positions)), as in Llama 4."""

    def forward(self, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the attention of queries [positions, batch, heads, elements]."""
        rope = self.config.hf_config.text_config.rope_parameters
        positions = torch.arange(len(query), device=query.device)
        rounds = torch.floor(positions / rope["original_max_position_embeddings"])
        scale = 1 + rope["llama_4_scaling_beta"] * torch.log(1 + rounds)
        return super().forward(query * scale[:, None, None, None].to(query.dtype), *args, **kwargs)


def olmoe(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers with OLMoE's attention, which has one norm over all heads."""
    from megatron.bridge.models.olmoe.olmoe_provider import OLMoESelfAttention

    block = local_layers(config, vp_stage)
    for layer in block.layer_specs:
        layer.submodules.self_attention.module = OLMoESelfAttention
    return block


def minimax_m2(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers, with norms over the queries of all heads, and over their keys."""
    from megatron.bridge.models.minimax_m2.minimax_m2_provider import FullDimKNorm, FullDimQNorm

    block = local_layers(config, vp_stage)
    for layer in block.layer_specs:
        parts = layer.submodules.self_attention.submodules
        parts.q_layernorm, parts.k_layernorm = FullDimQNorm, FullDimKNorm
    return block


def minimax_m3(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's layers, with a router of FP32 and norms whose weights are centred at zero."""
    from megatron.bridge.models.minimax_m3.minimax_m3_bridge import minimax_m3_block_spec

    block = minimax_m3_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    block.layer_norm = norm(config)
    for layer in block.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = norm(config)
        heads = parts.self_attention.submodules
        heads.q_layernorm = heads.k_layernorm = norm(config)
    return block


def experimental(config: Any, vp_stage: int | None = None) -> Any:
    """Megatron's own layers with gated delta nets or sparse attention: see gated_delta_net.install.

    For the low ranks of sparse attention Megatron takes no other linear layer without Transformer Engine.
    """
    block = experimental_attention(config, vp_stage)
    if config.experimental_attention_variant == "dsa":
        for layer in block.layer_specs:
            parts = layer.submodules.self_attention.submodules
            parts.linear_q_down_proj = parts.linear_kv_down_proj = ColumnParallelLinear
    return block


_FAMILIES: dict[str, Layers] = {
    "_build_exaone_moe_layer_spec": exaone_moe,
    "deepseek_v4_layers": deepseek_v4_layers,
    "exaone4_layer_spec": exaone4,
    "exaone_45_transformer_layer_spec": exaone45_layer,
    "gemma2_layer_spec": gemma2,
    "gemma3_layer_spec": gemma3,
    "_gemma4_block_spec": gemma4,
    experimental_attention.__name__: experimental,
    "heterogeneous_layer_spec": heterogeneous,
    "minimax_m2_layer_spec": minimax_m2,
    "minimax_m3_block_spec": minimax_m3,
    "ministral_layer_spec": ministral3,
    "olmoe_layer_spec": olmoe,
    step_layers.__name__: local_step_layers,
}
"""Name of Bridge's function -> the same layers of Megatron's own parts."""

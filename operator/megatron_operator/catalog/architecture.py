"""Sizes of models that only Megatron-Bridge builds: in the catalog, and in no recipe.

`spec.model` of a recipe is Megatron's command line; these are for the planner's estimates. Names are those of
Megatron's `TransformerConfig` where it has the setting.
"""

from typing import Annotated

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import Layers, Text, Width
from megatron_operator.api.model import ModelSpec

HYBRID_PATTERN = r"^[M*E-]+(/[M*E-]+)*$"


class TowerSpec(ApiModel):
    """An encoder of images or sound in front of the language model."""

    layers: Layers
    hidden_size: Width
    ffn_hidden_size: Width
    num_attention_heads: Width
    num_query_groups: Width | None = None
    """Heads of keys and values, where they are fewer."""
    gated: bool = False
    """Whether its feed-forward layers are gated."""
    conformer: bool = False
    """Whether its layers have a second feed-forward part and a convolution (arXiv:2005.08100)."""
    parameters: Annotated[int, Field(ge=1)]
    """Of the encoder and its projector to the language model."""
    trained_parameters: Annotated[int, Field(ge=0)] | None = None
    """What the functions train of them, where they freeze the encoder."""
    projector_parameters: Annotated[int, Field(ge=1)] | None = None
    """Of the projector alone, where it is known."""
    patches_per_token: Layers
    """Patches (or frames) that become one token of the language model."""
    tensor_parallel: bool = False
    """Whether its weights are split over the tensor-parallel group; else each rank has all."""
    deepstack_layers: int = Field(default=0, ge=0)
    """First layers of the language model that get its features as well, on the first pipeline stage."""


class DiffusionSpec(ApiModel):
    """What a diffusion transformer has beside its layers; `numLayers` counts all of these."""

    joint_layers: Layers | None = None
    """Layers in which latents and text have weights of their own; those behind them have both in one
    sequence. Without, each layer attends to the text in a second attention."""
    latent_channels: Width
    """Channels of a token of latents."""
    text_channels: Width
    """Width of the encoded text."""
    text_tokens: Layers
    """Tokens of the text of a sample."""
    time_channels: Width
    """Channels of the encoded time step."""
    pooled_channels: Width | None = None
    """Width of the vector that stands for all of the text."""
    guidance: bool = False
    """Whether the layers depend on the strength of the guidance too."""
    latent_tokens: Annotated[int, Field(ge=1)]
    """Tokens of latents of a sample of the functions' random data."""


class LayerRun(ApiModel):
    """Consecutive layers of the same parts, of a model whose layers differ."""

    count: Layers
    attention: bool = True
    """Whether they have attention."""
    ffn_hidden_size: Width | None = None
    """Width of their feed-forward part; without, they have none."""


class HeadsSpec(ApiModel):
    """Heads of the layers without a window; what is not set is that of the others."""

    num_attention_heads: Width | None = None
    num_query_groups: Width | None = None
    kv_channels: Width | None = None


class Architecture(ModelSpec):
    """Architecture of an entry, including what Megatron Core's own loop does not build."""

    hybrid_layer_pattern: Annotated[str, Field(pattern=HYBRID_PATTERN, max_length=512)] | None = None
    """Layers in order, each with one part: `M` Mamba-2, `*` attention, `-` feed-forward, `E` experts. Each
    `/` is followed by the layers of one multi-token prediction."""
    mtp_dense: bool | None = None
    """Whether the layer of a multi-token prediction is dense in a model with experts."""
    mtp_use_repeated_layer: bool | None = None
    """Whether all multi-token predictions use the same weights."""
    mamba_beside_attention: bool | None = None
    """Whether each layer has a Mamba-2 mixer beside its attention, behind the same norm (Falcon-H1)."""
    heterogeneous_layers: list[LayerRun] | None = None
    """Layers in order, where they differ in width or lack attention or feed-forward part (Llama-Nemotron)."""
    qk_layernorm_of_all_heads: bool | None = None
    """Whether the norms of queries and keys are over all heads at once (MiniMax-M2)."""
    mamba_num_heads: Width | None = None
    """Heads of a Mamba-2 layer."""
    mamba_head_dim: Width | None = None
    """Width of one of them."""
    mamba_state_dim: Width | None = None
    """Size of the state of a channel."""
    mamba_num_groups: Width | None = None
    """Groups of heads that share the input and output matrices of the state."""
    mamba_norm: bool | None = None
    """Whether a gated norm follows the scan of a Mamba-2 mixer (default)."""
    moe_latent_size: Width | None = None
    """Width to which tokens are projected before they are sent to the experts."""
    linear_attention_freq: Text | None = None
    """Layers with a gated delta net: a number n (all but every n-th) or a list such as `[1,1,1,0]*12`."""
    linear_num_key_heads: Width | None = None
    """Heads of queries and keys of a gated delta net."""
    linear_num_value_heads: Width | None = None
    """Heads of values."""
    linear_key_head_dim: Width | None = None
    """Width of a head of queries and keys."""
    linear_value_head_dim: Width | None = None
    """Width of a head of values."""
    attention_output_gate: bool | None = None
    """Whether the attention's output is multiplied by a gate of the same width, projected from its input."""
    attention_head_gate: bool | None = None
    """Whether that of each head is multiplied by a gate of one element (Step-3.5)."""
    geglu: bool | None = None
    """Feed-forward layers gated by GELU."""
    moe_norms: bool | None = None
    """Whether experts, shared experts and router have norms of their own (Gemma 4)."""
    per_layer_embedding_size: Width | None = None
    """Width of the embeddings that every layer has of its own, beside that of the first layer (Gemma 4)."""
    full_attention: HeadsSpec | None = None
    """Heads of the layers without a window, where they differ from those with one."""
    dsa_indexer_n_heads: Width | None = None
    """Heads of the indexer that selects the keys to which a query attends (DeepSeek sparse attention)."""
    dsa_indexer_head_dim: Width | None = None
    """Width of one of them."""
    dsa_indexer_topk: Width | None = None
    """Keys that it selects for each query."""
    dsa_indexer_topk_freq: Layers | None = None
    """Layers that share one indexer: the first of each n has it."""
    dsa_indexer_skip_topk_offset: int | None = Field(default=None, ge=0)
    """Number of the layer, from 1, from which on layers share indexers; all before have their own."""
    csa_compress_ratios: Text | None = None
    """Tokens that become one key, of each layer, such as `[0]*2+[4,128]*20+[4]`; 0 attends to a window alone
    (DeepSeek-V4)."""
    csa_window_size: Width | None = None
    """Keys of single tokens to which a query attends in these layers."""
    o_groups: Width | None = None
    """Groups of heads of these layers, each with a projection of its own to `oLoraRank` elements."""
    o_lora_rank: Width | None = None
    """Width of the output of one of them."""
    num_residual_streams: Layers | None = None
    """Residual streams, mixed around each part of a layer (manifold-constrained hyper-connections)."""
    post_layernorm: bool | None = None
    """A norm behind attention and feed-forward part, beside that in front of them (Gemma)."""
    tower: TowerSpec | None = None
    """What encodes images or sound; on the first pipeline stage."""
    sound_tower: TowerSpec | None = None
    """What encodes sound beside a tower for images."""
    diffusion: DiffusionSpec | None = None
    """Images or videos are made from noise; there is no vocabulary."""
    not_estimated: Text | None = None
    """Why the planner has no model of it; follows `parameters, memory and speed are not estimated: `."""

    @property
    def beyond_megatron(self) -> list[str]:
        """Settings of these that Megatron Core's own loop would not get, by their names in the catalog."""
        own = Architecture.model_fields.keys() - ModelSpec.model_fields.keys()
        return sorted(str(Architecture.model_fields[name].alias) for name in own & self.model_fields_set)

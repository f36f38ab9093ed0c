"""The model's architecture, in Megatron's own setting names (`--num-layers` is `numLayers`)."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_operator.api.base import ApiModel
from megatron_operator.api.bounds import (
    MOST_LAYERS,
    Fraction,
    FractionBelowOne,
    Large,
    Layers,
    NonNegative,
    Positions,
    Positive,
    Signed,
    Text,
    Width,
)

WINDOW_PATTERN = r"^-?[0-9]+,-?[0-9]+$"


class ModelSpec(ApiModel):
    """Architecture. Fields that are not set come from the catalog entry."""

    num_layers: Layers | None = None
    """Transformer layers."""
    hidden_size: Width | None = None
    """Width of the residual stream."""
    ffn_hidden_size: Width | None = None
    """Width of the dense feed-forward layers; Megatron's default is 4 x hiddenSize, 2/3 of it with swiglu."""
    num_attention_heads: Width | None = None
    """Query heads."""
    num_query_groups: Width | None = None
    """Key/value heads (GQA); default numAttentionHeads (MHA)."""
    kv_channels: Width | None = None
    """Width of one head; default hiddenSize / numAttentionHeads."""
    max_position_embeddings: Positions | None = None
    """Longest position; at least seqLength."""
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "none"] | None = None
    """Type of position embedding."""
    rotary_base: Large | None = None
    """Base (theta) of rotary embeddings."""
    rotary_percent: Fraction | None = None
    """Fraction of a head's width that is rotated."""
    use_rope_scaling: bool | None = None
    """Llama 3.1's scaling of rotary frequencies."""
    rope_scaling_factor: Positive | None = None
    """Scaling factor of `useRopeScaling`."""
    rotary_scaling_factor: Positive | None = None
    """YaRN scaling factor of positions (`positionEmbeddingType: yarn`, `ropeType: yarn`)."""
    yarn_original_max_position_embeddings: Positions | None = None
    """Longest position before YaRN scaling."""
    yarn_beta_fast: Positive | None = None
    """Number of rotations above which YaRN does not scale a frequency."""
    yarn_beta_slow: Positive | None = None
    """Number of rotations below which YaRN scales a frequency fully."""
    no_yarn_correction_range_round_to_int: bool | None = None
    """Do not round YaRN's range between the two to whole dimensions."""
    normalization: Literal["LayerNorm", "RMSNorm"] | None = None
    """Kind of normalization."""
    norm_epsilon: Positive | None = None
    """Epsilon of the normalization."""
    apply_layernorm_1p: bool | None = Field(default=None, alias="applyLayernorm1p")
    """Center the weights of the normalization at zero."""
    swiglu: bool | None = None
    """Gated SiLU feed-forward layers."""
    squared_relu: bool | None = None
    """Squared ReLU feed-forward layers."""
    quick_geglu: bool | None = None
    """Feed-forward layers gated by x * sigmoid(1.702 x)."""
    glu_linear_offset: Signed | None = None
    """Offset added to the linear half of a gated layer; with quickGeglu."""
    activation_func_clamp_value: Positive | None = None
    """Clamp of the inputs of the activation; with quickGeglu."""
    disable_bias_linear: bool | None = None
    """No bias in linear layers."""
    add_qkv_bias: bool | None = None
    """Bias in the QKV projection only."""
    qk_layernorm: bool | None = None
    """Normalization of queries and keys."""
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] | None = None
    """Attention sinks: an additional softmax term beside the keys, constant or learned per head."""
    window_size: Annotated[str, Field(pattern=WINDOW_PATTERN, max_length=24)] | None = None
    """Sliding-window attention: visible keys before and after a query, such as `128,0`."""
    window_attn_skip_freq: Text | None = None
    """Layers with the window: a number n (all but every n-th) or a list such as `[1,1,0]*12`."""
    untie_embeddings_and_output_weights: bool | None = None
    """Separate weights for the output layer."""
    attention_dropout: FractionBelowOne | None = None
    """Dropout of attention probabilities (Megatron's default is 0.1)."""
    hidden_dropout: FractionBelowOne | None = None
    """Dropout of the residual stream (Megatron's default is 0.1)."""
    vocab_size: Width | None = None
    """Tokens of the vocabulary, unpadded."""
    make_vocab_size_divisible_by: Width | None = None
    """The vocabulary is padded to a multiple of this times TP (Megatron's default is 128)."""
    init_method_std: Positive | None = None
    """Standard deviation of the initial weights."""

    num_experts: Layers | None = None
    """Experts of an MoE layer."""
    moe_layer_freq: Text | None = None
    """Which layers are MoE: a number n (every n-th) or a list such as `([0]*3+[1]*58)`."""
    moe_ffn_hidden_size: Width | None = None
    """Width of one expert; default ffnHiddenSize."""
    moe_shared_expert_intermediate_size: Width | None = None
    """Width of all shared experts together."""
    moe_shared_expert_gate: bool | None = None
    """Weight shared experts by a gate."""
    moe_router_topk: Layers | None = None
    """Experts per token."""
    moe_router_load_balancing_type: (
        Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"] | None
    ) = None
    """Load balancing of the router."""
    moe_aux_loss_coeff: NonNegative | None = None
    """Weight of the balancing loss (Megatron's default 0 means none)."""
    moe_z_loss_coeff: NonNegative | None = None
    """Weight of the router's z-loss."""
    moe_router_score_function: Literal["softmax", "sigmoid"] | None = None
    """Score function of the router."""
    moe_router_pre_softmax: bool | None = None
    """Apply softmax before top-k selection."""
    moe_router_enable_expert_bias: bool | None = None
    """Balancing without a loss: a bias per expert, updated after each step."""
    moe_router_bias_update_rate: Positive | None = None
    """Update rate of that bias."""
    moe_router_num_groups: Layers | None = None
    """Groups of experts for group-limited routing."""
    moe_router_group_topk: Layers | None = None
    """Groups that a token may be routed to."""
    moe_router_topk_scaling_factor: Positive | None = None
    """Scaling factor of the selected scores."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Precision of the router."""
    moe_grouped_gemm: bool | None = None
    """Compute all experts of a rank in one grouped GEMM."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] | None = None
    """Token dispatcher."""
    moe_permute_fusion: bool | None = None
    """Fused permutation of tokens."""

    multi_latent_attention: bool | None = None
    """Multi-head latent attention (DeepSeek)."""
    q_lora_rank: Width | None = None
    """Rank of the compressed query."""
    kv_lora_rank: Width | None = None
    """Rank of the compressed key and value."""
    qk_head_dim: Width | None = None
    """Width of a head's part without position embedding."""
    qk_pos_emb_head_dim: Width | None = None
    """Width of a head's rotated part."""
    v_head_dim: Width | None = None
    """Width of a value head."""
    rope_type: Literal["rope", "yarn"] | None = None
    """Rotary embedding type with MLA."""
    no_rope_fusion: bool | None = None
    """Disable the fused rotary embedding kernel."""
    mtp_num_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    """Multi-token-prediction layers; 0 leaves out those of the catalog."""
    mtp_loss_scaling_factor: Positive | None = None
    """Weight of the multi-token-prediction loss."""

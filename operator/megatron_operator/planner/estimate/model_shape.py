"""Shape of a model, with Megatron's defaults filled in (`megatron/training/arguments.py`, 0.19.2)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import shown
from megatron_operator.api.model import ModelSpec
from megatron_operator.catalog.architecture import Architecture, LayerRun
from megatron_operator.planner.estimate import architecture_sizes
from megatron_operator.planner.estimate.attention_kinds import Heads
from megatron_operator.planner.estimate.latent_attention import LatentAttention, latent_attention
from megatron_operator.planner.estimate.layer_attention import Special, layer_attention
from megatron_operator.planner.estimate.layer_pattern import moe_pattern, window_pattern
from megatron_operator.planner.estimate.layers import (
    DENSE,
    EXPERTS,
    DeltaNet,
    Diffusion,
    LayerKind,
    Mamba,
    Tower,
    diffusion_layers,
    hybrid_layers,
)


@dataclass(frozen=True, slots=True, eq=False)
class ModelShape:
    """Sizes that determine parameters, FLOPs and memory, in elements.

    Compared by identity, so that results are cached cheaply for the thousands of layouts of one model.
    """

    layers: int
    hidden: int
    ffn: int
    """Width of the dense feed-forward part behind its activation; the first product of a gated one has twice
    that."""
    heads: int
    """Query heads."""
    groups: int
    """Heads of keys and values."""
    head_dim: int
    vocab: int
    """Entries of the vocabulary without padding."""
    vocab_multiple: int
    """Number of entries, times TP, to a multiple of which Megatron pads the vocabulary."""
    max_positions: int
    """Tokens of the longest sequence, and entries of a table of learned positions."""
    gated: bool
    quick_geglu: bool
    """Gated by quick GELU: Megatron's FLOP count considers the third product of SwiGLU only."""
    bias: bool
    qkv_bias: bool
    norm_size: int
    """Parameters of a norm per hidden element: 1 for RMSNorm, 2 for LayerNorm."""
    qk_norm: bool
    tied: bool
    learned_positions: bool
    experts: int
    """Routed experts of a layer; 0 in a dense model."""
    expert_ffn: int
    """Width of one routed expert, as `ffn`."""
    shared_ffn: int
    """Width of all shared experts together, as `ffn`; 0 without."""
    shared_gate: bool
    """Whether a gate weights the shared experts."""
    topk: int
    """Routed experts of one token."""
    kinds: tuple[LayerKind, ...]
    """What each layer consists of."""
    mtp_layers: int
    """Multi-token predictions."""
    latent: LatentAttention | None
    mtp_kinds: tuple[LayerKind, ...] = (DENSE,)
    """Layers of one multi-token prediction."""
    mtp_repeated: bool = False
    """Whether all multi-token predictions use the same weights."""
    hybrid: bool = False
    """Whether the layers follow `--hybrid-layer-pattern`, each with one part."""
    mamba: Mamba | None = None
    delta: DeltaNet | None = None
    moe_latent: int | None = None
    """Width of the tokens that are sent to the experts, where it is not the hidden size."""
    gate: bool = False
    """Whether a gate of the same width multiplies the attention's output."""
    head_gate: bool = False
    """Whether a gate of one element for each head does."""
    gelu_gate: bool = False
    """Gated by GELU: only Megatron-Bridge's FLOP count considers the third product."""
    towers: tuple[Tower, ...] = ()
    diffusion: Diffusion | None = None
    post_norms: bool = False
    """Whether each part has a norm behind it too."""
    dropout: bool = True
    """Whether attention, feed-forward part and embedding are followed by a dropout (Megatron's default)."""
    sinks: bool = False
    """Whether the softmax has a term beside the keys."""
    learned_sinks: bool = False
    """Whether that term is learned, for each head."""
    window: int | None = None
    """Keys that a query attends to in windowed layers; none without windowed layers."""
    windowed: float = 0.0
    """Share of the layers that are windowed."""
    expert_norms: bool = False
    """Whether experts, shared experts and router have norms of their own."""
    per_layer_width: int = 0
    """Width of the embeddings that every layer has of its own."""
    streams: int = 1
    """Residual streams."""
    qk_norm_of_all_heads: bool = False
    """Whether the norms of queries and keys are over all heads at once instead of over each."""

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(kind.is_moe for kind in distinct_kinds(self))

    @property
    def expert_hidden(self) -> int:
        """Width of the tokens that are sent to the experts."""
        return self.moe_latent or self.hidden

    @property
    def norms(self) -> int:
        """Norms of one part of a layer."""
        return 2 if self.post_norms else 1

    @property
    def has_special_layers(self) -> bool:
        """Whether Megatron-Bridge builds its layers without virtual stages: attention beside a Mamba-2 mixer,
        or layers that differ in width."""
        return any(kind.mixer == "parallel" or kind.ffn is not None for kind in self.kinds)

    def padded_vocab(self, tp: int) -> int:
        """Entries of the vocabulary as Megatron pads it, to a multiple of `makeVocabSizeDivisibleBy` x TP."""
        multiple = self.vocab_multiple * tp
        return -(-self.vocab // multiple) * multiple


@lru_cache(maxsize=64)
def distinct_kinds(shape: ModelShape) -> frozenset[LayerKind]:
    """The kinds of layers that a model has: few, where it may have thousands of layers."""
    return frozenset(shape.kinds)


def heads_of(shape: ModelShape, kind: LayerKind) -> Heads:
    """The heads of a layer with softmax attention: its own, or the model's."""
    if isinstance(kind.attention, Heads):
        return kind.attention
    return Heads(shape.heads, shape.groups, shape.head_dim, windowed=False)


def gate_width(shape: ModelShape, own: Heads) -> int:
    """Elements of the gate of a layer's attention."""
    if shape.head_gate:
        return own.heads
    return own.heads * own.head_dim if shape.gate else 0


def ffn_of(shape: ModelShape, kind: LayerKind) -> int:
    """The width of a layer's dense feed-forward part: its own, or the model's."""
    return shape.ffn if kind.ffn is None else kind.ffn


_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "vocab_size")


def model_shape(model: ModelSpec, found: Diagnostics) -> ModelShape | None:
    """The model's shape; none, with the errors in `found`, when the model is incomplete or invalid.

    Without `ffnHiddenSize` the width is Megatron's default: 4 h, where h is the hidden size, and for SwiGLU
    2/3 of it, rounded down to a multiple of 64.
    """
    before = len(found.errors)
    more = model if isinstance(model, Architecture) else Architecture()
    _check_sizes(model, found)
    layers, hidden, heads, vocab = (
        model.num_layers or 1,
        model.hidden_size or 1,
        model.num_attention_heads or 1,
        model.vocab_size or (0 if more.diffusion else 1),
    )
    if model.num_experts is not None:
        topk = model.moe_router_topk or 2
        if topk > model.num_experts:
            found.error(
                "spec.model.moeRouterTopk",
                f"{topk} is above numExperts {model.num_experts}",
                f"set at most {model.num_experts}",
            )
    kinds, prediction, predictions = _kinds(model, more, layers, found)
    own, of_prediction = layer_attention(more, layers, found)
    kinds = _with_attention(kinds, own)
    prediction = _with_attention(prediction, (of_prediction,) * len(prediction))
    latent = latent_attention(model, found)
    window, windowed = _window(model, layers, found)
    if len(found.errors) > before:
        return None
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if model.swiglu else 4 * hidden
    ffn = model.ffn_hidden_size or default_ffn
    bias = not model.disable_bias_linear
    return ModelShape(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        groups=model.num_query_groups or heads,
        head_dim=model.kv_channels or hidden // heads,
        vocab=vocab,
        vocab_multiple=model.make_vocab_size_divisible_by or 128,
        max_positions=model.max_position_embeddings or 1,
        gated=bool(model.swiglu or model.quick_geglu or more.geglu),
        quick_geglu=bool(model.quick_geglu),
        bias=bias,
        qkv_bias=bias or bool(model.add_qkv_bias),
        norm_size=1 if model.normalization == "RMSNorm" else 2,
        qk_norm=bool(model.qk_layernorm),
        tied=not model.untie_embeddings_and_output_weights,
        learned_positions=model.position_embedding_type in (None, "learned_absolute"),
        experts=model.num_experts or 0,
        expert_ffn=model.moe_ffn_hidden_size or ffn,
        shared_ffn=model.moe_shared_expert_intermediate_size or 0,
        shared_gate=bool(model.moe_shared_expert_gate),
        topk=model.moe_router_topk or 2,
        kinds=kinds,
        mtp_layers=predictions,
        latent=latent,
        mtp_kinds=prediction,
        mtp_repeated=bool(more.mtp_use_repeated_layer),
        hybrid=more.hybrid_layer_pattern is not None,
        mamba=architecture_sizes.mamba(more),
        delta=architecture_sizes.delta(more),
        moe_latent=more.moe_latent_size,
        gate=bool(more.attention_output_gate),
        head_gate=bool(more.attention_head_gate),
        gelu_gate=bool(more.geglu),
        towers=architecture_sizes.towers(more),
        diffusion=architecture_sizes.diffusion(more, hidden),
        post_norms=bool(more.post_layernorm),
        dropout=model.hidden_dropout is None or model.hidden_dropout > 0,
        sinks=model.softmax_type in ("learnable", "off-by-one"),
        learned_sinks=model.softmax_type == "learnable",
        window=window,
        windowed=windowed,
        expert_norms=bool(more.moe_norms),
        per_layer_width=more.per_layer_embedding_size or 0,
        streams=more.num_residual_streams or 1,
        qk_norm_of_all_heads=bool(more.qk_layernorm_of_all_heads),
    )


def _kinds(
    model: ModelSpec, more: Architecture, layers: int, found: Diagnostics
) -> tuple[tuple[LayerKind, ...], tuple[LayerKind, ...], int]:
    """The layers, those of a multi-token prediction, and the number of predictions."""
    if more.hybrid_layer_pattern is not None:
        return hybrid_layers(more.hybrid_layer_pattern)
    if more.diffusion is not None:
        return diffusion_layers(more.diffusion.joint_layers, layers), (DENSE,), 0
    if more.heterogeneous_layers is not None:
        return _heterogeneous(more.heterogeneous_layers, layers, found), (DENSE,), 0
    if more.mamba_beside_attention:
        return (LayerKind("parallel", "dense"),) * layers, (DENSE,), 0
    kinds = [DENSE] * layers
    if model.num_experts is not None:
        pattern = _checked(model, "moe_layer_freq", moe_pattern, layers, found)
        kinds = [EXPERTS if is_moe else DENSE for is_moe in pattern]
    # The layer of a prediction is one with softmax attention, like the last one of a model with delta nets.
    prediction = DENSE if more.mtp_dense else kinds[-1]
    if more.linear_attention_freq is not None:
        linear = window_pattern(more.linear_attention_freq, layers)
        kinds = [
            LayerKind("delta" if is_linear else kind.mixer, kind.feed_forward)
            for kind, is_linear in zip(kinds, linear, strict=True)
        ]
    return tuple(kinds), (prediction,), model.mtp_num_layers or 0


def _heterogeneous(runs: list[LayerRun], layers: int, found: Diagnostics) -> tuple[LayerKind, ...]:
    kinds = tuple(
        LayerKind(
            "attention" if run.attention else None,
            None if run.ffn_hidden_size is None else "dense",
            ffn=run.ffn_hidden_size,
        )
        for run in runs
        for _ in range(run.count)
    )
    if len(kinds) != layers:
        found.error(
            "spec.model.heterogeneousLayers",
            f"lists {len(kinds)} layers, the model has {layers}",
            f"list {layers}, or set numLayers {len(kinds)}",
        )
    return kinds


def _with_attention(kinds: tuple[LayerKind, ...], own: tuple[Special, ...]) -> tuple[LayerKind, ...]:
    """The layers with what their attention has beyond the model's sizes."""
    return tuple(
        replace(kind, attention=each) if each and kind.softmax else kind
        for kind, each in zip(kinds, own, strict=False)
    )


def _check_sizes(model: ModelSpec, found: Diagnostics) -> None:
    """Add an error for each missing size and for sizes that contradict each other."""
    diffusion = isinstance(model, Architecture) and model.diffusion is not None
    for name in _REQUIRED[:3] if diffusion else _REQUIRED:
        if getattr(model, name) is None:
            field = ModelSpec.model_fields[name].alias
            found.error(f"spec.model.{field}", "is missing", "set it, or name a recipe that has it")
    hidden, heads = model.hidden_size, model.num_attention_heads
    if hidden and heads and model.kv_channels is None and hidden % heads:
        found.error(
            "spec.model.hiddenSize",
            f"{hidden} is not divisible by numAttentionHeads {heads}",
            "set kvChannels, or a hiddenSize that is a multiple of numAttentionHeads",
        )
    groups = model.num_query_groups
    if heads and groups and heads % groups:
        found.error(
            "spec.model.numQueryGroups",
            f"{groups} does not divide numAttentionHeads {heads}",
            f"set a divisor of {heads}",
        )
    activations = [name for name in ("swiglu", "squared_relu", "quick_geglu") if getattr(model, name)]
    if len(activations) > 1:
        first, second = (ModelSpec.model_fields[name].alias for name in activations[:2])
        found.error(f"spec.model.{second}", f"is set together with {first}", "set one of the two")


def _checked(
    model: ModelSpec,
    name: str,
    read: Callable[[str | None, int], tuple[bool, ...]],
    layers: int,
    found: Diagnostics,
) -> tuple[bool, ...]:
    """The pattern of the field `name`; an error in `found` where it is invalid."""
    text = getattr(model, name)
    try:
        return read(text, layers)
    except ValueError as error:
        meaning = "0 (dense) or 1 (experts)" if name == "moe_layer_freq" else "0 (all keys) or 1 (window)"
        found.error(
            f"spec.model.{ModelSpec.model_fields[name].alias}",
            f"{shown(text)}: {error}",
            f"set a number, or a list of {layers} values {meaning}",
        )
        return (True,) * layers


def _window(model: ModelSpec, layers: int, found: Diagnostics) -> tuple[int | None, float]:
    """Keys that a query of a windowed layer attends to, and the share of windowed layers."""
    if model.window_size is None:
        return None, 0.0
    before, after = map(int, model.window_size.split(","))
    if after != 0:
        found.error(
            "spec.model.windowSize",
            f"{model.window_size} lets a token attend to {'all' if after < 0 else after} following tokens",
            f"set {before},0: the model predicts the next token",
        )
    pattern = _checked(model, "window_attn_skip_freq", window_pattern, layers, found)
    return (before + 1 if before >= 0 else None), sum(pattern) / layers

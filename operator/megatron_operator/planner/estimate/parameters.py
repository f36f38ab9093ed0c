"""Exact parameter counts and FLOPs per token of Megatron's GPTModel and HybridModel.

Parameter counts follow the modules that `megatron.core.models.gpt` and `.hybrid` build; FLOPs follow
`megatron.training.training.num_floating_point_operations`. Both of megatron-core 0.19.2.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from megatron_operator.api.fine_tuning import ModelPart
from megatron_operator.planner.estimate import diffusion
from megatron_operator.planner.estimate.attention_kinds import Compressed, Indexed
from megatron_operator.planner.estimate.layers import CONVOLUTION, LayerKind
from megatron_operator.planner.estimate.model_shape import ModelShape, ffn_of, gate_width, heads_of
from megatron_operator.planner.estimate.residual_streams import head_parameters, mapping_parameters
from megatron_operator.planner.estimate.sparse_parameters import (
    compressed_flops,
    compressed_parameters,
    indexer_parameters,
)


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Numbers of parameters of one transformer layer, by how they are sharded."""

    tensor: int
    """Parameters split over the tensor-parallel group."""
    replicated: int
    """Parameters replicated on every rank."""
    experts: int = 0
    """Split over expert-parallel and expert-tensor-parallel groups."""
    active_experts: int = 0
    """Parameters of the experts that one token uses."""

    @property
    def total(self) -> int:
        """All parameters."""
        return self.tensor + self.replicated + self.experts

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.tensor + self.replicated + self.active_experts


def _attention(shape: ModelShape, kind: LayerKind) -> tuple[int, int]:
    """Parameters of attention: (split over TP, replicated)."""
    if isinstance(kind.attention, Compressed):
        return 0, compressed_parameters(shape, kind.attention)
    h, n = shape.hidden, shape.heads
    proj_bias = h if shape.bias else 0
    if shape.latent is None:
        own = heads_of(shape, kind)
        n, d, g = own.heads, own.head_dim, own.groups
        projected = (n + 2 * g) * d + gate_width(shape, own)
        tensor = h * projected + n * d * h + (projected if shape.qkv_bias else 0)
        tensor += n if shape.learned_sinks else 0
        if shape.qk_norm_of_all_heads:
            return tensor + (n + g) * d * shape.norm_size, proj_bias
        return tensor, proj_bias + (2 * d * shape.norm_size if shape.qk_norm else 0)
    m = shape.latent
    query_width = n * (m.qk_dim + m.rope_dim)
    tensor = m.kv_rank * n * (m.qk_dim + m.v_dim) + n * m.v_dim * h
    replicated = h * (m.kv_rank + m.rope_dim) + proj_bias
    replicated += m.kv_rank * shape.norm_size if shape.qk_norm else 0
    if m.q_rank is None:
        tensor += h * query_width
    else:
        tensor += m.q_rank * query_width
        replicated += h * m.q_rank + (m.q_rank * shape.norm_size if shape.qk_norm else 0)
    if isinstance(kind.attention, Indexed):
        replicated += indexer_parameters(shape, kind.attention)
    return tensor, replicated


def _mlp(shape: ModelShape, width: int, hidden: int | None = None) -> tuple[int, int]:
    """Feed-forward parameters: (split over TP, replicated); `hidden` is the model's unless given."""
    fc1, h = 2 if shape.gated else 1, hidden or shape.hidden
    return h * width * (fc1 + 1) + (fc1 * width if shape.bias else 0), h if shape.bias else 0


def _mamba(shape: ModelShape, _: LayerKind) -> tuple[int, int]:
    """Parameters of a Mamba-2 mixer, all split over TP: projections, convolution, three numbers per head
    (time step, decay, skip) and, where it has one, the gated norm."""
    m = shape.mamba
    assert m is not None, "only for models with Mamba-2 layers"
    projections = shape.hidden * (m.projected + m.inner)
    return projections + (CONVOLUTION + 1) * m.convolved + 3 * m.heads + (m.inner if m.norm else 0), 0


def _parallel(shape: ModelShape, kind: LayerKind) -> tuple[int, int]:
    """Parameters of attention and a Mamba-2 mixer side by side: (split over TP, replicated)."""
    (first, beside), (second, more) = _attention(shape, kind), _mamba(shape, kind)
    return first + second, beside + more


def _delta(shape: ModelShape, _: LayerKind) -> tuple[int, int]:
    """Parameters of a gated delta net: (split over TP, replicated); the convolution has no bias."""
    d = shape.delta
    assert d is not None, "only for models with gated delta nets"
    projections = shape.hidden * (d.projected + d.values)
    return projections + CONVOLUTION * d.convolved + 2 * d.value_heads, d.value_dim


_MIXERS = {"attention": _attention, "mamba": _mamba, "parallel": _parallel, "delta": _delta}


def layer_parameters(shape: ModelShape, kind: LayerKind) -> LayerParameters:
    """Numbers of parameters of one layer with its norms."""
    if kind.is_diffusion:
        return LayerParameters(*diffusion.layer_parameters(shape, kind))
    tensor, replicated = _MIXERS[kind.mixer](shape, kind) if kind.mixer else (0, 0)
    replicated += kind.parts * shape.norms * shape.hidden * shape.norm_size
    replicated += kind.parts * mapping_parameters(shape.hidden, shape.streams)
    if shape.per_layer_width:
        replicated += shape.hidden * (2 * shape.per_layer_width + shape.norm_size)
    if kind.feed_forward is None:
        return LayerParameters(tensor, replicated)
    if kind.feed_forward == "dense":
        dense, dense_bias = _mlp(shape, ffn_of(shape, kind))
        return LayerParameters(tensor + dense, replicated + dense_bias)
    replicated += shape.hidden * shape.experts + (shape.experts if shape.bias else 0)
    if shape.expert_norms:
        # In front of the shared experts, behind these and the others, and the router's scales
        # (`Gemma4TransformerLayer`, `Gemma4MoELayer` and `Gemma4TopKRouter` of Megatron-Bridge).
        replicated += 4 * shape.hidden + shape.experts
    if shape.shared_ffn:
        shared, shared_bias = _mlp(shape, shape.shared_ffn)
        tensor, replicated = (
            tensor + shared,
            replicated + shared_bias + (shape.hidden if shape.shared_gate else 0),
        )
    expert = sum(_mlp(shape, shape.expert_ffn, shape.expert_hidden))
    replicated += 2 * shape.hidden * shape.moe_latent if shape.moe_latent else 0
    return LayerParameters(tensor, replicated, shape.experts * expert, shape.topk * expert)


def mtp_parameters(shape: ModelShape) -> LayerParameters:
    """One multi-token prediction: its layers, its projection and three norms."""
    layers = [layer_parameters(shape, kind) for kind in shape.mtp_kinds]
    projection, norms = 2 * shape.hidden * shape.hidden, 3 * shape.hidden * shape.norm_size
    norms += head_parameters(shape.hidden, shape.streams)
    return LayerParameters(
        sum(layer.tensor for layer in layers) + projection,
        sum(layer.replicated for layer in layers) + norms,
        sum(layer.experts for layer in layers),
        sum(layer.active_experts for layer in layers),
    )


def mtp_copies(shape: ModelShape) -> int:
    """How many multi-token predictions have weights of their own."""
    return min(shape.mtp_layers, 1) if shape.mtp_repeated else shape.mtp_layers


def per_layer_projection(shape: ModelShape) -> int:
    """Parameters of what projects the first layer's input to the embeddings of all layers, with its norm
    (`_attach_ple_modules` of Megatron-Bridge); 0 without them."""
    width = shape.per_layer_width
    return width * (shape.hidden * shape.layers + shape.norm_size)


def embedding_parameters(shape: ModelShape, vocab: int) -> int:
    """Number of parameters of word embeddings of `vocab` entries, also of those that each layer has of its
    own, and of learned positions."""
    words = vocab * (shape.hidden + shape.layers * shape.per_layer_width)
    return words + (shape.max_positions * shape.hidden if shape.learned_positions else 0)


def parameters(shape: ModelShape, vocab: int, *, active: bool = False) -> int:
    """Number of parameters of the model without multi-token-prediction layers, as model cards count; with
    the towers that encode images or sound.

    `vocab` is the unpadded vocabulary for the count of a model card, the padded one for what is allocated.
    `active` counts only the experts of one token.
    """
    layers = 0
    for kind, count in Counter(shape.kinds).items():
        each = layer_parameters(shape, kind)
        layers += count * (each.active if active else each.total)
    output = 0 if shape.tied else vocab * shape.hidden
    if shape.diffusion is not None:
        return layers + diffusion.outside_parameters(shape)
    layers += sum(tower.parameters for tower in shape.towers)
    layers += head_parameters(shape.hidden, shape.streams) + per_layer_projection(shape)
    return embedding_parameters(shape, vocab) + layers + shape.hidden * shape.norm_size + output


def allocated_parameters(shape: ModelShape, padded_vocab: int) -> int:
    """Number of parameters that a run has in memory and in its checkpoints.

    `padded_vocab` is in entries, as `ModelShape.padded_vocab` returns it. Other than `parameters` it includes
    multi-token-prediction layers, which share embedding and output.
    """
    return parameters(shape, padded_vocab) + mtp_copies(shape) * mtp_parameters(shape).total


def trained_parameters(shape: ModelShape, frozen: Collection[ModelPart], allocated: int) -> int:
    """Number of parameters that a run trains which freezes these parts of a model of `allocated` ones.

    At most, where the number of a projector is not known.
    """
    towers = sum(tower.parameters for tower in shape.towers)
    language = 0 if "language" in frozen else allocated - towers
    return language + sum(tower.trained_without(frozen) for tower in shape.towers)


@lru_cache(maxsize=64)
def flops_per_token(shape: ModelShape, seq_length: int, padded_vocab: int) -> int:
    """Floating-point operations of one token, forward and backward, without the masked half of attention.

    `seq_length` is in tokens, `padded_vocab` in entries. Counted as in Megatron, so that they compare with
    what a run logs: attention windows are not deducted, a tower is not counted, quick GEGLU counts two of its
    three products, and a Mamba-2 layer is taken to be twice as wide as the model, whatever its heads (with
    attention beside it, which Megatron does not have, as wide as it is). Keys that an indexer leaves out are
    deducted for DeepSeek-V4 alone; its residual streams and embeddings of each layer are not counted.
    """
    if shape.diffusion is not None:
        return diffusion.flops_per_token(shape, seq_length)
    h, mtp = shape.hidden, shape.mtp_layers
    layers = sum(
        count * (_mixer_flops(shape, kind, seq_length) + _feed_forward_flops(shape, kind))
        for kind, count in Counter((*shape.kinds, *(mtp * shape.mtp_kinds))).items()
    )
    projections = 0 if shape.hybrid else mtp * (3 * h + 2 * h * h)
    return layers + 6 * (projections + h * padded_vocab * (1 + mtp))


def _feed_forward_flops(shape: ModelShape, kind: LayerKind) -> int:
    """Operations of a token in the feed-forward part of a layer, forward and backward."""
    expansion = 3 if shape.gated and not shape.quick_geglu else 2
    if kind.feed_forward is None:
        return 0
    if kind.feed_forward == "dense":
        return 6 * shape.hidden * expansion * ffn_of(shape, kind)
    routed = shape.expert_hidden * expansion * shape.expert_ffn * shape.topk
    latent = 2 * shape.hidden * shape.moe_latent if shape.moe_latent else 0
    return 6 * (routed + latent + shape.hidden * expansion * shape.shared_ffn)


def _mixer_flops(shape: ModelShape, kind: LayerKind, seq_length: int) -> int:
    """Operations of a token in the part of a layer that mixes tokens, forward and backward."""
    h, n = shape.hidden, shape.heads
    if kind.mixer is None:
        return 0
    if isinstance(kind.attention, Compressed):
        return int(compressed_flops(shape, kind.attention, seq_length))
    if kind.mixer == "mamba":
        return _mamba_flops(shape, 2 * h)
    if kind.mixer == "parallel":
        assert shape.mamba is not None, "only for models with Mamba-2 layers"
        attention = _mixer_flops(shape, replace(kind, mixer="attention"), seq_length)
        return attention + _mamba_flops(shape, shape.mamba.inner)
    if kind.mixer == "delta":
        d = shape.delta
        assert d is not None, "only for models with gated delta nets"
        rule = d.value_heads * d.value_dim**2 * 4
        return 6 * (h * (d.projected + d.values) + CONVOLUTION * d.convolved + rule)
    if shape.latent is None:
        own = heads_of(shape, kind)
        width = own.heads * own.head_dim
        projected = width + gate_width(shape, own) + 2 * own.groups * own.head_dim
        return 6 * (h * projected + width * h) + 3 * seq_length * 2 * width
    latent = shape.latent
    query_width = n * (latent.qk_dim + latent.rope_dim)
    query = h * query_width if latent.q_rank is None else latent.q_rank * (h + query_width + 1)
    key_value = latent.kv_rank * (h + n * (latent.qk_dim + latent.v_dim) + 1) + h * latent.rope_dim
    linear = query + key_value + n * latent.v_dim * h
    return 6 * linear + 3 * seq_length * (query_width + n * latent.v_dim)


def _mamba_flops(shape: ModelShape, inner: int) -> int:
    """Operations of a token in a Mamba-2 mixer whose heads have `inner` elements together."""
    m = shape.mamba
    assert m is not None, "only for models with Mamba-2 layers"
    projections = shape.hidden * (2 * inner + 2 * m.groups * m.state + m.heads) + inner * shape.hidden
    return 6 * projections + 3 * 7 * inner * m.state

"""Exact parameter counts and FLOPs per token of Megatron's GPTModel.

Counts follow the modules that `megatron.core.models.gpt` builds; FLOPs follow
`megatron.training.training.num_floating_point_operations`. Both of megatron-core 0.19.2.
"""

from dataclasses import dataclass
from functools import lru_cache

from megatron_operator.planner.estimate.model_shape import Architecture


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one transformer layer by how ranks hold them."""

    tensor: int
    """Split over the tensor-parallel group."""
    replicated: int
    """Held whole by every rank."""
    experts: int = 0
    """Split over expert-parallel and expert-tensor-parallel groups."""
    active_experts: int = 0
    """Of the experts, what one token meets."""

    @property
    def total(self) -> int:
        return self.tensor + self.replicated + self.experts

    @property
    def active(self) -> int:
        return self.tensor + self.replicated + self.active_experts


def _attention(a: Architecture) -> tuple[int, int]:
    h, n = a.hidden, a.heads
    proj_bias = h if a.bias else 0
    if a.latent is None:
        d, g = a.head_dim, a.groups
        tensor = h * (n + 2 * g) * d + n * d * h + ((n + 2 * g) * d if a.qkv_bias else 0)
        tensor += n if a.sinks else 0
        return tensor, proj_bias + (2 * d * a.norm_size if a.qk_norm else 0)
    m = a.latent
    query_width = n * (m.qk_dim + m.rope_dim)
    tensor = m.kv_rank * n * (m.qk_dim + m.v_dim) + n * m.v_dim * h
    replicated = h * (m.kv_rank + m.rope_dim) + proj_bias
    replicated += m.kv_rank * a.norm_size if a.qk_norm else 0
    if m.q_rank is None:
        tensor += h * query_width
    else:
        tensor += m.q_rank * query_width
        replicated += h * m.q_rank + (m.q_rank * a.norm_size if a.qk_norm else 0)
    return tensor, replicated


def _mlp(a: Architecture, width: int) -> tuple[int, int]:
    """Feed-forward parameters: (split over TP, replicated)."""
    fc1 = 2 if a.gated else 1
    weights = a.hidden * width * (fc1 + 1)
    return weights + (fc1 * width if a.bias else 0), a.hidden if a.bias else 0


def layer_parameters(a: Architecture, *, moe: bool) -> LayerParameters:
    """One transformer layer with its two normalizations."""
    tensor, replicated = _attention(a)
    replicated += 2 * a.hidden * a.norm_size
    if not moe:
        dense, dense_bias = _mlp(a, a.ffn)
        return LayerParameters(tensor + dense, replicated + dense_bias)
    replicated += a.hidden * a.experts + (a.experts if a.bias else 0)
    if a.shared_ffn:
        shared, shared_bias = _mlp(a, a.shared_ffn)
        tensor, replicated = tensor + shared, replicated + shared_bias + (a.hidden if a.shared_gate else 0)
    expert = sum(_mlp(a, a.expert_ffn))
    return LayerParameters(tensor, replicated, a.experts * expert, a.topk * expert)


def mtp_parameters(a: Architecture) -> LayerParameters:
    """One multi-token-prediction layer: a transformer layer, its projection and three normalizations."""
    layer = layer_parameters(a, moe=a.moe_layers[-1])
    projection, norms = 2 * a.hidden * a.hidden, 3 * a.hidden * a.norm_size
    return LayerParameters(
        layer.tensor + projection, layer.replicated + norms, layer.experts, layer.active_experts
    )


def embedding_parameters(a: Architecture, vocab: int) -> int:
    """Word embeddings and, where they are learned, positions."""
    return vocab * a.hidden + (a.max_positions * a.hidden if a.learned_positions else 0)


def parameters(a: Architecture, vocab: int, *, active: bool = False) -> int:
    """Parameters of the model without multi-token-prediction layers, as model cards count.

    `vocab` is the unpadded vocabulary for a model card's count and the padded one for what is allocated.
    """
    dense, moe = layer_parameters(a, moe=False), layer_parameters(a, moe=True)
    layers = sum((moe.active if active else moe.total) if is_moe else dense.total for is_moe in a.moe_layers)
    output = 0 if a.tied else vocab * a.hidden
    return embedding_parameters(a, vocab) + layers + a.hidden * a.norm_size + output


@lru_cache(maxsize=64)
def flops_per_token(a: Architecture, seq_length: int, padded_vocab: int) -> int:
    """Floating-point operations of one token, forward and backward, causal mask counted as half.

    As Megatron counts, so that a run's own figures compare: windows of attention are not taken off, and of
    quick GEGLU's three products it knows two.
    """
    h, n, mtp = a.hidden, a.heads, a.mtp_layers
    last_is_moe = a.moe_layers[-1]
    moe_layers = sum(a.moe_layers) + (mtp if last_is_moe else 0)
    dense_layers = a.layers - sum(a.moe_layers) + (0 if last_is_moe else mtp)
    expansion = 3 if a.gated and not a.quick_geglu else 2
    mlp = h * expansion * (a.ffn * dense_layers + (a.expert_ffn * a.topk + a.shared_ffn) * moe_layers)
    if a.latent is None:
        width = n * a.head_dim
        attention = h * (width + 2 * a.groups * a.head_dim) + width * h
        core_halves = 2 * width
    else:
        m = a.latent
        query_width = n * (m.qk_dim + m.rope_dim)
        query = h * query_width if m.q_rank is None else m.q_rank * (h + query_width + 1)
        key_value = m.kv_rank * (h + n * (m.qk_dim + m.v_dim) + 1) + h * m.rope_dim
        attention = query + key_value + n * m.v_dim * h
        core_halves = query_width + n * m.v_dim
    layers = a.layers + mtp
    logits = h * padded_vocab * (1 + mtp)
    linear = mlp + attention * layers + mtp * (3 * h + 2 * h * h) + logits
    return 6 * linear + 3 * seq_length * core_halves * layers

"""Exact parameter counts and FLOPs per token of Megatron's GPTModel.

Parameter counts follow the modules that `megatron.core.models.gpt` builds; FLOPs follow
`megatron.training.training.num_floating_point_operations`. Both of megatron-core 0.19.2.
"""

from dataclasses import dataclass
from functools import lru_cache

from megatron_operator.planner.estimate.model_shape import ModelShape


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


def _attention(shape: ModelShape) -> tuple[int, int]:
    """Parameters of attention: (split over TP, replicated)."""
    h, n = shape.hidden, shape.heads
    proj_bias = h if shape.bias else 0
    if shape.latent is None:
        d, g = shape.head_dim, shape.groups
        tensor = h * (n + 2 * g) * d + n * d * h + ((n + 2 * g) * d if shape.qkv_bias else 0)
        tensor += n if shape.sinks else 0
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
    return tensor, replicated


def _mlp(shape: ModelShape, width: int) -> tuple[int, int]:
    """Feed-forward parameters: (split over TP, replicated)."""
    fc1 = 2 if shape.gated else 1
    weights = shape.hidden * width * (fc1 + 1)
    return weights + (fc1 * width if shape.bias else 0), shape.hidden if shape.bias else 0


def layer_parameters(shape: ModelShape, *, moe: bool) -> LayerParameters:
    """Numbers of parameters of one transformer layer with its two norms, with experts if `moe`."""
    tensor, replicated = _attention(shape)
    replicated += 2 * shape.hidden * shape.norm_size
    if not moe:
        dense, dense_bias = _mlp(shape, shape.ffn)
        return LayerParameters(tensor + dense, replicated + dense_bias)
    replicated += shape.hidden * shape.experts + (shape.experts if shape.bias else 0)
    if shape.shared_ffn:
        shared, shared_bias = _mlp(shape, shape.shared_ffn)
        tensor, replicated = (
            tensor + shared,
            replicated + shared_bias + (shape.hidden if shape.shared_gate else 0),
        )
    expert = sum(_mlp(shape, shape.expert_ffn))
    return LayerParameters(tensor, replicated, shape.experts * expert, shape.topk * expert)


def mtp_parameters(shape: ModelShape) -> LayerParameters:
    """One multi-token-prediction layer: a transformer layer, its projection and three norms."""
    layer = layer_parameters(shape, moe=shape.moe_layers[-1])
    projection, norms = 2 * shape.hidden * shape.hidden, 3 * shape.hidden * shape.norm_size
    return LayerParameters(
        layer.tensor + projection, layer.replicated + norms, layer.experts, layer.active_experts
    )


def embedding_parameters(shape: ModelShape, vocab: int) -> int:
    """Number of parameters of word embeddings of `vocab` entries and of learned positions."""
    return vocab * shape.hidden + (shape.max_positions * shape.hidden if shape.learned_positions else 0)


def parameters(shape: ModelShape, vocab: int, *, active: bool = False) -> int:
    """Number of parameters of the model without multi-token-prediction layers, as model cards count.

    `vocab` is the unpadded vocabulary for the count of a model card, the padded one for what is allocated.
    `active` counts only the experts of one token.
    """
    dense, moe = layer_parameters(shape, moe=False), layer_parameters(shape, moe=True)
    layers = sum(
        (moe.active if active else moe.total) if is_moe else dense.total for is_moe in shape.moe_layers
    )
    output = 0 if shape.tied else vocab * shape.hidden
    return embedding_parameters(shape, vocab) + layers + shape.hidden * shape.norm_size + output


def allocated_parameters(shape: ModelShape, padded_vocab: int) -> int:
    """Number of parameters that a run has in memory and in its checkpoints.

    `padded_vocab` is in entries, as `ModelShape.padded_vocab` returns it. Other than `parameters` it includes
    multi-token-prediction layers, which share embedding and output.
    """
    return parameters(shape, padded_vocab) + shape.mtp_layers * mtp_parameters(shape).total


@lru_cache(maxsize=64)
def flops_per_token(shape: ModelShape, seq_length: int, padded_vocab: int) -> int:
    """Floating-point operations of one token, forward and backward, without the masked half of attention.

    `seq_length` is in tokens, `padded_vocab` in entries. Counted as in Megatron, so that they compare with
    what a run logs: attention windows are not deducted, and quick GEGLU counts two of its three products.
    """
    h, n, mtp = shape.hidden, shape.heads, shape.mtp_layers
    last_is_moe = shape.moe_layers[-1]
    moe_layers = sum(shape.moe_layers) + (mtp if last_is_moe else 0)
    dense_layers = shape.layers - sum(shape.moe_layers) + (0 if last_is_moe else mtp)
    expansion = 3 if shape.gated and not shape.quick_geglu else 2
    mlp = (
        h
        * expansion
        * (shape.ffn * dense_layers + (shape.expert_ffn * shape.topk + shape.shared_ffn) * moe_layers)
    )
    if shape.latent is None:
        width = n * shape.head_dim
        attention = h * (width + 2 * shape.groups * shape.head_dim) + width * h
        core_halves = 2 * width
    else:
        m = shape.latent
        query_width = n * (m.qk_dim + m.rope_dim)
        query = h * query_width if m.q_rank is None else m.q_rank * (h + query_width + 1)
        key_value = m.kv_rank * (h + n * (m.qk_dim + m.v_dim) + 1) + h * m.rope_dim
        attention = query + key_value + n * m.v_dim * h
        core_halves = query_width + n * m.v_dim
    layers = shape.layers + mtp
    logits = h * padded_vocab * (1 + mtp)
    linear = mlp + attention * layers + mtp * (3 * h + 2 * h * h) + logits
    return 6 * linear + 3 * seq_length * core_halves * layers

"""Parameters and operations of attention to keys that are selected or compressed.

DeepSeek sparse attention follows megatron-core 0.19.2 (`DSAttention`, `DSAIndexer`). DeepSeek-V4 follows
transformers' `modeling_deepseek_v4.py`, which has the parameters of the checkpoint, and Megatron-Bridge's
count of its operations (`flop_utils.py`), because megatron-core 0.19.2 has no module for it.
"""

from megatron_operator.planner.estimate.attention_kinds import Compressed, Index, Indexed
from megatron_operator.planner.estimate.layers import LayerKind
from megatron_operator.planner.estimate.model_shape import ModelShape


def keys(index: Index | None, every: float) -> float:
    """Keys that a query attends to on average, of `every` that a sequence has.

    Causal: the n-th query has n keys, of which it attends to `topk` at most.
    """
    if index is None or every <= index.topk:
        return every / 2
    return index.topk * (1 - index.topk / (2 * every))


def attended(kind: Indexed | Compressed, seq_length: int) -> float:
    """Keys that a query attends to on average in a sequence of `seq_length` tokens."""
    if isinstance(kind, Indexed):
        return keys(kind.index, seq_length)
    window = min(kind.window, seq_length / 2)
    return window + (keys(kind.index, seq_length / kind.ratio) if kind.ratio else 0.0)


def scored(kind: Indexed | Compressed, seq_length: int) -> float:
    """Keys that the layer's own indexer scores for a query on average."""
    if isinstance(kind, Indexed):
        return 0.0 if kind.shared else seq_length / 2
    return seq_length / kind.ratio / 2 if kind.index is not None else 0.0


def key_width(shape: ModelShape, kind: LayerKind) -> float:
    """Elements per token of the keys that context-parallel ranks exchange; 0 for plain attention."""
    own = kind.sparse
    if isinstance(own, Compressed):
        index = own.index.head_dim if own.index else 0
        return (shape.head_dim + index) / own.ratio if own.ratio else 0.0
    if own is None or shape.latent is None:
        return 0.0
    return shape.latent.kv_rank + shape.latent.rope_dim + (0 if own.shared else own.index.head_dim)


def indexer_parameters(shape: ModelShape, kind: Indexed) -> int:
    """Parameters of the indexer, all replicated: its queries, which read the compressed ones of the
    attention, one key with a LayerNorm, and a weight for each head (`DSAIndexer`)."""
    index, latent = kind.index, shape.latent
    if kind.shared or latent is None:
        return 0
    queries = (latent.q_rank or shape.hidden) * index.heads * index.head_dim
    return queries + shape.hidden * (index.head_dim + index.heads) + 2 * index.head_dim


def compressed_parameters(shape: ModelShape, kind: Compressed) -> int:
    """Parameters of one DeepSeek-V4 attention, all replicated: it allows no tensor parallelism.

    Queries and keys with their norms, a sink for each head and the grouped output; the compressor's keys,
    gates, positions and norm; and the indexer's queries, weights and own compressor.
    """
    h, width = shape.hidden, shape.heads * shape.head_dim
    queries = kind.q_rank * (h + width + 1)
    output = kind.out_rank * (width + kind.out_groups * h)
    total = queries + output + shape.head_dim * (h + 1) + shape.heads
    if kind.ratio:
        total += _compressor(h, kind, shape.head_dim)
    if kind.index is not None:
        index = kind.index
        total += kind.q_rank * index.heads * index.head_dim + h * index.heads
        total += _compressor(h, kind, index.head_dim)
    return total


def _compressor(hidden: int, kind: Compressed, head_dim: int) -> int:
    return kind.overlap * head_dim * (2 * hidden + kind.ratio) + head_dim


def compressed_flops(shape: ModelShape, kind: Compressed, seq_length: int) -> float:
    """Operations of a token in one DeepSeek-V4 attention, forward and backward.

    As Megatron-Bridge counts them (`flop_utils.py`, `dsv4_hybrid`): the whole window for every token, and
    the indexer's scores for all compressed keys, of which half are in the future.
    """
    h, n, d = shape.hidden, shape.heads, shape.head_dim
    linear = kind.q_rank * (h + n * d + 1) + d * (h + 1)
    linear += kind.out_rank * (n * d + kind.out_groups * h)
    compressed = 0.0
    if kind.ratio:
        compressed = keys(kind.index, seq_length // kind.ratio)
        linear += 2 * h * kind.overlap * d
    total = linear + 2 * n * d * (kind.window + compressed)
    if kind.index is not None:
        index = kind.index
        width = index.heads * index.head_dim
        total += 2 * h * kind.overlap * index.head_dim + kind.q_rank * width + h * index.heads
        total += width * (seq_length // kind.ratio)
    return 6 * total

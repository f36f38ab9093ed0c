"""Products, memory traffic and kept tensors of attention to keys that are selected or compressed.

The modules are those of megatron-core 0.19.2 for DeepSeek sparse attention (`AbsorbedMLASelfAttention`,
`DSAttention`), and of Megatron-LM's development branch for DeepSeek-V4 (`csa.py`), which 0.19.2 lacks.
"""

from dataclasses import dataclass
from typing import Final

from megatron_operator.planner.estimate.attention_kinds import Compressed, Indexed
from megatron_operator.planner.estimate.matmul import MatMul
from megatron_operator.planner.estimate.sparse_parameters import attended, keys, scored
from megatron_operator.planner.estimate.workload import Workload

_SELECTED_BYTES: Final = 12
"""Bytes moved for each score that a fused indexer selects from: it is written in FP32 and read twice."""
_UNFUSED_KEY_BYTES: Final = 18
"""Bytes moved per element of the keys that `unfused_compressed_sparse_attn` gathers for each query: copied in
BF16 (4), cast to FP32 (6), and read by both products (8)."""
_UNFUSED_SCORE_BYTES: Final = 60
"""Bytes moved per score there, in FP32: written, scaled, masked, reduced, shifted, exponentiated, summed and
divided by operations that PyTorch runs one by one."""
_UNFUSED_INDEX_BYTES: Final = 24
"""Bytes moved per score of each head of an indexer without a fused kernel (`fused_qk_topk_naive`): written,
rectified, weighted and summed in FP32."""


def compressed_products(w: Workload, kind: Compressed) -> list[MatMul]:
    """Linear layers of one DeepSeek-V4 attention; the heads' output goes through an einsum for each group."""
    shape, rows = w.shape, w.tokens
    h, width = shape.hidden, shape.heads * shape.head_dim
    products = [
        MatMul(rows, h, kind.q_rank),
        MatMul(rows, kind.q_rank, width),
        MatMul(rows, h, shape.head_dim),
        MatMul(rows, width / kind.out_groups, kind.out_rank, count=kind.out_groups, in_bf16=True),
        MatMul(rows, kind.out_groups * kind.out_rank, h),
    ]
    if kind.ratio:
        products += 2 * [MatMul(rows, h, kind.overlap * shape.head_dim)]
    return products


def index_products(w: Workload, kind: Indexed | Compressed) -> list[MatMul]:
    """Linear layers of the layer's own indexer; their inputs get no gradients from it."""
    shape, rows, index = w.shape, w.tokens, kind.index
    if index is None or (isinstance(kind, Indexed) and kind.shared):
        return []
    h, latent = shape.hidden, shape.latent
    rank = kind.q_rank if isinstance(kind, Compressed) else (latent.q_rank if latent else None) or h
    products = [MatMul(rows, rank, index.heads * index.head_dim), MatMul(rows, h, index.heads)]
    if isinstance(kind, Indexed):
        return [*products, MatMul(rows, h, index.head_dim)]
    return [*products, *(2 * [MatMul(rows, h, kind.overlap * index.head_dim)])]


@dataclass(frozen=True, slots=True)
class SparseWork:
    """What one micro batch computes on one rank beside the linear layers."""

    attention: float
    """FLOPs of scores and values of a forward pass."""
    index: float
    """FLOPs of the indexer's scores, of its loss and of their gradients."""
    moved: float
    """Bytes of selection and, without fused kernels, of all that these write to memory, forward."""


def work(w: Workload, kind: Indexed | Compressed, forward_passes: float) -> SparseWork:
    """Operations beside the linear layers; the indexer's with `forward_passes` of the forward pass.

    Latent attention is absorbed: a head's query is as wide as the compressed key, which all heads share and
    whose latent part is the value (`AbsorbedMLASelfAttention`). The loss of an indexer compares its scores of
    the selected keys with the attention's, which it computes again, and its gradients are two products of the
    selected scores (`dsa_indexer_use_sparse_loss`); DeepSeek-V4's has a loss only with fused kernels, as its
    functions set it.
    """
    shape, seq = w.shape, w.seq_length
    per_query, candidates = attended(kind, seq), scored(kind, seq)
    if isinstance(kind, Indexed):
        assert shape.latent is not None, "only for latent attention"
        query = shape.latent.kv_rank + shape.latent.rope_dim
        heads, width, chosen = shape.heads / w.dims.tp, query + shape.latent.kv_rank, per_query
    else:
        query = shape.head_dim
        heads, width = shape.heads, 2 * shape.head_dim
        chosen = keys(kind.index, seq / kind.ratio) if kind.ratio else 0.0
    index_width = kind.index.heads * kind.index.head_dim if kind.index and candidates else 0
    fused = isinstance(kind, Indexed) or w.execution.fused_sparse_attention
    index = forward_passes * 2 * candidates * index_width
    moved = _SELECTED_BYTES * candidates
    if fused and index_width:
        index += 2 * chosen * (2 * index_width + forward_passes * heads * query)
    if not fused:
        moved = per_query * (_UNFUSED_KEY_BYTES * query + _UNFUSED_SCORE_BYTES * heads)
        moved += 2 * candidates * _UNFUSED_INDEX_BYTES * (kind.index.heads if kind.index else 0)
    return SparseWork(
        attention=w.tokens * 2 * per_query * heads * width,
        index=w.tokens * index,
        moved=w.tokens * moved,
    )


def kept(w: Workload, kind: Compressed, modules: frozenset[str]) -> float:
    """Bytes per token that one DeepSeek-V4 attention keeps for its backward pass.

    Own derivation, with 2 bytes an element: compressed queries before and behind their norm, queries before
    and behind theirs, the key before and behind its norm, the attention's output and that of its groups; the
    compressor's keys and gates, and the indexer's queries. Recomputation of `mla_up_proj` keeps no queries
    and no key. Without fused kernels also, in FP32, the keys gathered for each query, three tensors of the
    scores and the queries (`unfused_compressed_sparse_attn`).
    """
    shape = w.shape
    width = shape.heads * shape.head_dim
    elements = 2 * kind.q_rank + width + kind.out_groups * kind.out_rank
    elements += shape.head_dim if "mla_up_proj" in modules else 2 * width + 2 * shape.head_dim
    if kind.ratio:
        elements += 2 * kind.overlap * shape.head_dim
    total = 2.0 * elements
    if not w.execution.fused_sparse_attention:
        selected = attended(kind, w.seq_length)
        total += 4 * (selected * (shape.head_dim + 3 * shape.heads) + width)
    elif kind.index is not None:
        total += 2.0 * kind.index.heads * kind.index.head_dim
    return total


def indexed_kept(w: Workload, kind: Indexed) -> float:
    """Bytes per token that absorbed latent attention keeps beside plain latent attention, less what it does
    not: the queries of the latent width and the output of that width, instead of keys and values of all heads
    (`AbsorbedMLASelfAttention`); the indexer's queries; and the selected keys' numbers, 4 bytes each."""
    shape = w.shape
    m = shape.latent
    assert m is not None, "only for latent attention"
    absorbed = shape.heads * (2 * m.kv_rank + m.rope_dim) + m.kv_rank + m.rope_dim
    plain = shape.heads * (m.qk_dim + m.rope_dim + m.v_dim)
    queries = 0 if kind.shared else kind.index.heads * kind.index.head_dim
    return 2.0 * (absorbed - plain + queries) + 4.0 * min(kind.index.topk, w.seq_length)

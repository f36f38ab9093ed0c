"""Matrix products of a layer on one rank, and the bytes that its scan moves."""

from typing import Final

from megatron_operator.planner.estimate import diffusion_layers
from megatron_operator.planner.estimate.attention_kinds import Compressed
from megatron_operator.planner.estimate.layers import CHUNK, DELTA_CHUNK, ENCODED, LayerKind, Tower
from megatron_operator.planner.estimate.matmul import MatMul
from megatron_operator.planner.estimate.model_shape import ModelShape, ffn_of, gate_width, heads_of
from megatron_operator.planner.estimate.sparse_attention import compressed_products
from megatron_operator.planner.estimate.workload import Workload


def _attention_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    """Linear layers of attention on one tensor-parallel rank, with the shapes of Megatron's `SelfAttention`
    or, for latent attention, `MLASelfAttention`."""
    shape, rows = w.shape, w.tokens
    if isinstance(kind.attention, Compressed):
        return compressed_products(w, kind.attention)
    if shape.latent is None:
        own = heads_of(shape, kind)
        width = own.heads * own.head_dim
        projected = width + gate_width(shape, own) + 2 * own.groups * own.head_dim
        return [
            MatMul(rows, shape.hidden, projected / w.dims.tp),
            MatMul(rows, width / w.dims.tp, shape.hidden),
        ]
    m = shape.latent
    split = w.dims.tp if w.split_sequence else 1
    query, value = shape.heads * (m.qk_dim + m.rope_dim), shape.heads * m.v_dim
    products = [
        MatMul(rows / split, shape.hidden, m.kv_rank + m.rope_dim),
        MatMul(rows, m.kv_rank, shape.heads * (m.qk_dim + m.v_dim) / w.dims.tp),
        MatMul(rows, value / w.dims.tp, shape.hidden),
    ]
    if m.q_rank is None:
        return [*products, MatMul(rows, shape.hidden, query / w.dims.tp)]
    return [
        *products,
        MatMul(rows / split, shape.hidden, m.q_rank),
        MatMul(rows, m.q_rank, query / w.dims.tp),
    ]


def _feed_forward(shape: ModelShape, rows: float, width: float) -> list[MatMul]:
    return [MatMul(rows, shape.hidden, (2 if shape.gated else 1) * width), MatMul(rows, width, shape.hidden)]


def _dense_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    return _feed_forward(w.shape, w.tokens, ffn_of(w.shape, kind) / w.dims.tp)


def _expert_products(w: Workload) -> list[MatMul]:
    """The experts of a rank, with tokens routed evenly, and its share of the shared experts.

    Own derivation: a rank computes s b k e / t rows for all of its experts, where s b are the tokens of a
    micro batch on one context-parallel rank, k the experts per token, e is ETP and t is TP.
    """
    shape, hidden = w.shape, w.shape.expert_hidden
    local = shape.experts / w.dims.ep
    rows = w.tokens * shape.topk * w.dims.etp / w.dims.tp / local
    width = shape.expert_ffn / w.dims.etp
    products = [
        MatMul(rows, hidden, (2 if shape.gated else 1) * width, count=local),
        MatMul(rows, width, hidden, count=local),
    ]
    if shape.moe_latent:
        whole = w.tokens / (w.dims.tp if w.split_sequence else 1)
        products += [MatMul(whole, shape.hidden, hidden), MatMul(whole, hidden, shape.hidden)]
    return products + (
        _feed_forward(shape, w.tokens, shape.shared_ffn / w.dims.tp) if shape.shared_ffn else []
    )


def adapter_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    """The two products of each adapter of one layer; that of the experts reads all tokens routed to them."""
    if w.adapters is None:
        return []
    dim, products = w.adapters.dim, []
    for each in w.adapters.layers(w.shape, kind):
        rows, split = w.tokens, w.dims.tp
        if each.of_experts:
            rows, split = rows * w.shape.topk * w.dims.etp / w.dims.tp, w.dims.etp
        products += [MatMul(rows, each.inputs, dim / split), MatMul(rows, dim, each.outputs / split)]
    return products


def layer_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    """Matrix products of the forward pass of one layer on one rank, without adapters, an indexer, and the
    scan of a Mamba-2 layer or a gated delta net."""
    if kind.is_diffusion:
        return diffusion_layers.products(w, kind)
    products: list[MatMul] = []
    if kind.softmax:
        products += _attention_products(w, kind)
    if kind.scans:
        projected, inner = projections(w.shape, kind)
        products += [
            MatMul(w.tokens, w.shape.hidden, projected / w.dims.tp),
            MatMul(w.tokens, inner / w.dims.tp, w.shape.hidden),
        ]
    if kind.feed_forward is not None:
        products += _expert_products(w) if kind.is_moe else _dense_products(w, kind)
    if width := w.shape.per_layer_width:
        # To the layer's own embedding and, as its gate, again; then back to the hidden size.
        products += 2 * [MatMul(w.tokens, w.shape.hidden, width)] + [MatMul(w.tokens, width, w.shape.hidden)]
    return products


def projections(shape: ModelShape, kind: LayerKind) -> tuple[int, int]:
    """Width of the input projection of a Mamba-2 layer or a gated delta net, and of what its output
    projection reads."""
    if kind.mixer in ("mamba", "parallel"):
        assert shape.mamba is not None, "only for models with Mamba-2 layers"
        return shape.mamba.projected, shape.mamba.inner
    assert shape.delta is not None, "only for models with gated delta nets"
    return shape.delta.projected, shape.delta.values


def mixed_width(shape: ModelShape, kind: LayerKind) -> int:
    """Width of what the output projection of a Mamba-2 layer or a gated delta net reads."""
    return projections(shape, kind)[1]


def tower_patches(w: Workload, tower: Tower) -> float:
    """Patches that a tower encodes for one micro batch; every context-parallel rank encodes all of them."""
    return w.tokens * w.dims.cp * ENCODED * tower.share * tower.patches_per_token


def tower_products(w: Workload, tower: Tower) -> list[MatMul]:
    """Matrix products of one layer of a tower on one rank; without the keys of relative positions."""
    rows = tower_patches(w, tower)
    tp, h = w.dims.tp if tower.split else 1, tower.hidden
    attention = [MatMul(rows, h, tower.projected / tp), MatMul(rows, h / tp, h)]
    feed_forward = [
        MatMul(rows, h, (2 if tower.gated else 1) * tower.ffn / tp),
        MatMul(rows, tower.ffn / tp, h),
    ]
    if not tower.conformer:
        return attention + feed_forward
    # The convolution over frames is between two products, of which the first is gated.
    return attention + 2 * feed_forward + [MatMul(rows, h, 2 * h / tp), MatMul(rows, h / tp, h)]


_SCANS: Final = 4
"""The backward pass of both kernels first repeats the forward pass, and moves about twice as much."""


def scan_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes moved per token between the projections of a Mamba-2 layer or a gated delta net, forward and
    backward.

    Own derivation from the kernels of mamba_ssm (`_mamba_chunk_scan_combined_fwd`) and of
    flash-linear-attention (`chunk_gated_delta_rule_fwd`), with 2 bytes an element, 4 of states and of
    matrices within a chunk: the convolution reads and writes its channels, each kernel its inputs and
    results, and the states are written, passed on and read once for each chunk.
    """
    if kind.mixer in ("mamba", "parallel"):
        m = w.shape.mamba
        assert m is not None, "only for models with Mamba-2 layers"
        states = 16 * m.inner * m.state / CHUNK
        within = m.groups * (4 * m.state + 8 * CHUNK)
        return _SCANS * (4 * m.convolved + 14 * m.inner + states + within)
    d = w.shape.delta
    assert d is not None, "only for models with gated delta nets"
    keys = d.value_heads * d.key_dim
    states = 4 * keys * d.value_dim / DELTA_CHUNK
    within = 8 * d.value_heads * DELTA_CHUNK
    return _SCANS * (4 * d.convolved + 8 * d.keys + 20 * keys + 18 * d.values + states + within)


def recomputed_products(w: Workload, kind: LayerKind) -> list[MatMul]:
    """Products that selective recomputation repeats."""
    modules = w.recompute.modules if w.recompute.granularity == "selective" else frozenset()
    again: list[MatMul] = []
    if "mla_up_proj" in modules and isinstance(kind.attention, Compressed):
        # `DSv4HybridSelfAttention` recomputes the queries of all heads and the one key.
        again += compressed_products(w, kind.attention)[1:3]
    if "mla_up_proj" in modules and kind.softmax and w.shape.latent is not None:
        again += [
            p
            for p in _attention_products(w, kind)
            if p.inner in (w.shape.latent.q_rank, w.shape.latent.kv_rank)
        ]
    if "mlp" in modules and kind.feed_forward == "dense":
        again += _dense_products(w, kind)
    if "moe" in modules and kind.is_moe:
        again += _expert_products(w)
    return again

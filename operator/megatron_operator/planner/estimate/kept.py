"""Bytes that one layer keeps of its forward pass for its backward pass."""

from megatron_operator.planner.estimate import diffusion_layers, residual_streams, sparse_attention
from megatron_operator.planner.estimate.attention_kinds import Compressed, Indexed
from megatron_operator.planner.estimate.layers import DELTA_CHUNK, LayerKind, Tower
from megatron_operator.planner.estimate.model_shape import ModelShape, ffn_of, gate_width, heads_of
from megatron_operator.planner.estimate.products import tower_patches
from megatron_operator.planner.estimate.workload import Workload


def layer_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes that one layer keeps of one micro batch on one rank.

    The tensors that Megatron's layers with Transformer Engine save for the backward pass, of 2 bytes an
    element, per token: input and output of both norms, 8 h, where h is the hidden size; queries, keys, values
    and attention's output, of the width of all heads or of all groups; the inputs of norms of queries and
    keys; the masks of two dropouts, 2 h. Then what the feed-forward part keeps: the first product, of twice
    the width if gated, and the activation. For a GPT with as many groups as heads this is (18 h + 4 f) / t,
    as `theoretical_memory_usage.py` counts for every model. Latent attention, Mamba-2 and gated delta nets
    have their own tensors, and a layer of a hybrid model has only one norm. FP8 keeps inputs of linear layers
    in one byte, and the attention's output twice. In FP32 all but the masks is of 4 bytes. Unfused attention
    keeps its scores too, unless `core_attn` is recomputed.

    With sequence parallelism all of it is split over t tensor-parallel ranks, without only what is not 8 h
    and masks.
    """
    if kind.is_diffusion:
        return diffusion_layers.layer_bytes(w, kind)
    shape, modules, fp8 = w.shape, w.recompute.selected, w.numerics.fp8
    norms = (3.0 if fp8 else 4.0) * shape.hidden * kind.parts
    if "layernorm" in modules:
        norms -= (1 if fp8 else 2) * shape.hidden * kind.parts
    if shape.post_norms:
        norms += 2 * shape.hidden * kind.parts
    norms += kind.parts * residual_streams.kept_bytes(shape.hidden, shape.streams, modules)
    whole, masks = norms, shape.hidden * kind.parts if shape.dropout else 0
    if shape.expert_norms and kind.is_moe:
        # Inputs of the norms behind experts and shared experts, the shared experts' input and the router's.
        whole += 8.0 * shape.hidden
    if shape.per_layer_width:
        # The layer's own embedding, its gate before and behind its GELU, their product, and the norm's input.
        whole += 8.0 * shape.per_layer_width + 2.0 * shape.hidden
    if kind.mixer == "parallel":
        # The inputs of both mixers are scaled copies of the norm's result.
        whole += 4.0 * shape.hidden
    split = _mixer_width(w, kind, modules)
    if kind.feed_forward is not None:
        split += _expert_width(w, modules) if kind.is_moe else _dense_width(w, kind, modules)
    whole = w.numerics.widths * whole + masks
    split *= w.numerics.widths
    return w.tokens * (split / w.dims.tp + whole / (w.dims.tp if w.split_sequence else 1))


def stream_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes of the residual streams of one layer while they are recomputed, of one micro batch."""
    each = residual_streams.recomputed_bytes(w.shape.hidden, w.shape.streams, w.recompute.selected)
    each *= w.numerics.widths
    return w.tokens * kind.parts * each / (w.dims.tp if w.split_sequence else 1)


def recomputed_score_bytes(w: Workload, kind: LayerKind) -> float:
    """Bytes of the scores of one layer while `core_attn` is recomputed, of one micro batch."""
    if "core_attn" not in w.recompute.selected:
        return 0.0
    return w.tokens * w.numerics.widths * _score_width(w, kind) / w.dims.tp


def tower_bytes(w: Workload) -> float:
    """Bytes that the towers keep of one micro batch on one rank of the first stage; 0 without one.

    Own derivation, with 2 bytes an element: inputs and outputs of two norms, queries, keys, values and the
    attention's output, the first product and the activation. Conformers have two more norms, the product in
    front of the convolution, what its gate passes on, its result and that of the norm and activation behind
    it. Nothing where they are frozen.
    """
    if w.adapters is not None:
        return 0.0
    return sum(_tower_bytes(w, tower) for tower in w.shape.towers if not tower.freezes_encoder(w.frozen))


def _tower_bytes(w: Workload, tower: Tower) -> float:
    feed_forward = (6 if tower.gated else 4) * tower.ffn
    width = 10 * tower.hidden + 2 * tower.projected + feed_forward
    if tower.conformer:
        width += 18 * tower.hidden + feed_forward
    return tower_patches(w, tower) * tower.layers * width / (w.dims.tp if tower.split else 1)


def _mixer_width(w: Workload, kind: LayerKind, modules: frozenset[str]) -> float:
    """Bytes per token of what mixes tokens."""
    if kind.mixer is None:
        return 0.0
    if kind.mixer == "mamba":
        return _mamba_width(w)
    beside = _mamba_width(w) if kind.mixer == "parallel" else 0.0
    if kind.mixer == "delta":
        return _delta_width(w)
    if isinstance(kind.attention, Compressed):
        return sparse_attention.kept(w, kind.attention, modules)
    width = _attention_width(w, kind, modules)
    if isinstance(kind.attention, Indexed):
        width += sparse_attention.indexed_kept(w, kind.attention)
    if "core_attn" not in modules:
        width += _score_width(w, kind)
    return width + beside


def _score_width(w: Workload, kind: LayerKind) -> float:
    """Bytes per token of the scores of unfused attention: probabilities, a mask, and what dropout leaves."""
    if not w.execution.unfused_attention or not kind.softmax or isinstance(kind.attention, Compressed):
        return 0.0
    return 5.0 * heads_of(w.shape, kind).heads * w.seq_length / w.dims.cp


def _mamba_width(w: Workload) -> float:
    """Bytes per token of a Mamba-2 layer: the input projection, the scan's result before and behind its gate,
    and the input of the output projection.

    The kernel keeps nothing else, and computes convolution and states again
    (`MambaSplitConv1dScanCombinedFn` of mamba_ssm 2.2).
    """
    m = w.shape.mamba
    assert m is not None, "only for models with Mamba-2 layers"
    return 2.0 * m.projected + (5 if w.numerics.fp8 else 6) * m.inner


def _delta_width(w: Workload) -> float:
    """Bytes per token of a gated delta net: the input projection, the convolution's result, queries and keys
    normalized for each head of values, the triangular matrix of a chunk (`chunk_gated_delta_rule` of
    flash-linear-attention), the rule's result and the input of the output projection."""
    d = w.shape.delta
    assert d is not None, "only for models with gated delta nets"
    repeated = 2 * d.value_heads * d.key_dim
    kept = d.projected + d.convolved + repeated + d.value_heads * DELTA_CHUNK + d.values
    return 2.0 * kept + (1 if w.numerics.fp8 else 2) * d.values


def _attention_width(w: Workload, kind: LayerKind, modules: frozenset[str]) -> float:
    """Bytes per token of queries, keys, values, the inputs of their norms and the attention's output."""
    shape, fp8 = w.shape, w.numerics.fp8
    if shape.latent is not None:
        output = shape.heads * shape.latent.v_dim
        return _latent_width(shape, "mla_up_proj" in modules) + (output if fp8 else 0)
    own = heads_of(shape, kind)
    heads, groups = own.heads * own.head_dim, own.groups * own.head_dim
    # A norm over all heads keeps FP32 copies as well.
    normalized = (6.0 if shape.qk_norm_of_all_heads else 2.0) * (heads + groups) if shape.qk_norm else 0.0
    # The gate, and the product with it, which is the projection's input.
    has_gate = shape.gate or shape.head_gate
    gated = (1.0 if fp8 else 2.0) * heads + 2.0 * gate_width(shape, own) if has_gate else 0.0
    return 2.0 * (heads + 2 * groups) + normalized + (3 if fp8 and not has_gate else 2) * heads + gated


def _dense_width(w: Workload, kind: LayerKind, modules: frozenset[str]) -> float:
    """Bytes per token of the first product of a dense feed-forward part and of its activation."""
    if "mlp" in modules:
        return 0.0
    product = 4 if w.shape.gated else 2
    # The gate behind its GELU: Megatron has no fused kernel for the approximation that Gemma uses.
    product += 2 if w.shape.gelu_gate else 0
    return (product + (1 if w.numerics.fp8 else 2)) * ffn_of(w.shape, kind)


def _latent_width(shape: ModelShape, recomputed: bool) -> float:
    """Bytes per token of the tensors of latent attention: compressed, normalized, up-projected, output."""
    m = shape.latent
    assert m is not None, "only for latent attention"
    query, key, value = (
        shape.heads * width for width in (m.qk_dim + m.rope_dim, m.qk_dim + m.rope_dim, m.v_dim)
    )
    compressed = 2 * (m.q_rank or 0) + 2 * m.kv_rank + m.rope_dim
    projected = 0 if recomputed else query + key + value
    return 2.0 * (compressed + projected + value)


def _expert_width(w: Workload, modules: frozenset[str]) -> float:
    """Bytes per token of router, experts and shared experts."""
    shape, fp8 = w.shape, w.numerics.fp8
    product = (4 if shape.gated else 2) + (2 if shape.gelu_gate else 0)
    result = 1 if fp8 else 2
    router = 8.0 * shape.experts
    shared = 0.0 if modules & {"shared_experts", "moe"} else (product + result) * shape.shared_ffn
    if "moe" in modules:
        return router
    activated = 0 if "moe_act" in modules else result * shape.expert_ffn
    routed = shape.topk * (result * shape.expert_hidden * w.dims.etp + product * shape.expert_ffn + activated)
    latent = 4.0 * shape.moe_latent if shape.moe_latent else 0.0
    return router + shared + routed + latent

"""Memory of the GPU that needs most, by part. All sizes in bytes.

Dense models with query groups follow `megatron/training/theoretical_memory_usage.py` of megatron-core 0.19.2.
What that file does not cover (experts, latent attention, context parallelism, FP8, full recomputation, uneven
stages, the stages after the first) follows the tensors that Megatron keeps.
"""

from dataclasses import dataclass
from functools import lru_cache

from megatron_operator.api.status import MemoryPerGpu, Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.estimate.parameters import LayerParameters, layer_parameters, mtp_parameters
from megatron_operator.planner.estimate.workload import Workload

CONTEXT_BYTES = 2 * GIB
"""CUDA context, loaded kernels, cuBLAS and cuDNN workspaces, fragmentation: an allowance, not a formula."""
COMMUNICATOR_BYTES = GIB // 4
"""Channels and proxy buffers of one NCCL communicator, for each kind of parallel group."""


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of weights, gradients and optimizer states of one rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Bytes of all states."""
        return self.weights + self.gradients + self.optimizer


def estimate(resolved: ResolvedRecipe, plan: Plan) -> MemoryPerGpu:
    """Memory of the GPU that needs most under a plan.

    Raises InvalidRecipeError when the model is incomplete.
    """
    accelerator = hardware.of_profile(resolved.accelerator_type, resolved.profile)
    return memory_per_gpu(Workload.of(resolved, plan), accelerator.memory if accelerator else None)


def memory_per_gpu(w: Workload, capacity: int | None) -> MemoryPerGpu:
    """Memory of the pipeline stage that needs most: the first, the last, or the one with most layers.

    `capacity` is the accelerator's bytes; without one (`cpu`) there is no accelerator runtime, and `other`
    is 0.
    """
    stages = {0, w.dims.pp - 1, w.stage_layers.index(max(w.stage_layers))}
    parts = ((states(w, stage), activations(w, stage)) for stage in sorted(stages))
    held, kept = max(parts, key=lambda part: part[0].total + part[1])
    other = _runtime(w) if capacity is not None else 0
    weights, gradients, optimizer, kept_bytes = map(int, (held.weights, held.gradients, held.optimizer, kept))
    return MemoryPerGpu(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=kept_bytes,
        other=other,
        total=weights + gradients + optimizer + kept_bytes + other,
        capacity=capacity,
    )


@lru_cache(maxsize=64)
def _layers(shape: ModelShape) -> tuple[LayerParameters, LayerParameters, LayerParameters]:
    """Parameters of a dense layer, of a layer with experts and of a multi-token-prediction layer."""
    return layer_parameters(shape, moe=False), layer_parameters(shape, moe=True), mtp_parameters(shape)


def held_parameters(w: Workload, stage: int) -> tuple[float, float, float]:
    """Numbers of parameters of one rank: (layers without experts, experts, embedding and output).

    Attention and dense feed-forward weights are split over TP, experts over ETP x EP; norms and routers are
    replicated. The last stage has the output weights and, for multi-token prediction or tied weights, a copy
    of the embedding.
    """
    shape = w.shape
    dense, moe, mtp = _layers(shape)
    moe_count = w.moe_of_stage[stage]
    dense_count, last = w.stage_layers[stage] - moe_count, stage == w.dims.pp - 1
    mtp_count = shape.mtp_layers if last else 0
    tensor = dense_count * dense.tensor + moe_count * moe.tensor + mtp_count * mtp.tensor
    replicated = dense_count * dense.replicated + moe_count * moe.replicated + mtp_count * mtp.replicated
    layers = tensor / w.dims.tp + replicated
    experts = (moe_count * moe.experts + mtp_count * mtp.experts) / (w.dims.etp * w.dims.ep)
    table = shape.padded_vocab(w.dims.tp) * shape.hidden / w.dims.tp
    vocabulary = 0.0
    if stage == 0:
        vocabulary += table + (shape.max_positions * shape.hidden if shape.learned_positions else 0)
    if last:
        layers += shape.hidden * shape.norm_size
        copies = (not shape.tied or stage > 0) + (stage > 0 and shape.mtp_layers > 0 and not shape.tied)
        vocabulary += copies * table
    return layers, experts, vocabulary


def states(w: Workload, stage: int) -> States:
    """Bytes of weights, gradients and optimizer states of one rank of a stage.

    The distributed optimizer splits the optimizer states over DP x CP ranks, those of experts over their own
    data-parallel group (Megatron's estimate leaves CP out).
    """
    layers, experts, vocabulary = held_parameters(w, stage)
    n = w.numerics
    held = layers + experts + vocabulary
    copies, expert_copies = w.optimizer_copies
    return States(
        weights=n.weight * held + n.fp8_copies * (layers + experts),
        gradients=n.gradient * held,
        optimizer=n.optimizer * ((layers + vocabulary) / copies + experts / expert_copies),
    )


def micro_batches_kept(w: Workload, stage: int) -> float:
    """Maximum number of micro batches whose activations a stage holds, for all layers of the stage.

    1F1B schedule with p stages: p - stage, or all micro batches if there are fewer. Interleaved with v
    virtual stages: 2 (p - stage - 1) + (v - 1) p + 1 chunks of 1/v of the stage's layers, which for the first
    stage is p times the factor 1 + (p - 1) / (p v) of arXiv:2205.05198.
    """
    if w.dims.vp > 1:
        return (2 * (w.dims.pp - stage - 1) + (w.dims.vp - 1) * w.dims.pp + 1) / w.dims.vp
    return min(w.dims.pp - stage, w.micro_batches)


def activations(w: Workload, stage: int) -> float:
    """Bytes that forward passes keep for backward passes on one rank of a stage."""
    shape, tokens, kept = w.shape, w.tokens, micro_batches_kept(w, stage)
    moe = w.moe_of_stage[stage]
    dense = w.stage_layers[stage] - moe
    each = (layer_bytes(w, moe=False) if dense else 0.0, layer_bytes(w, moe=True) if moe else 0.0)
    last = stage == w.dims.pp - 1
    if w.recompute.granularity == "full":
        total = _recomputed(
            w, dense + moe, max(each), sum(n * b for n, b in zip((dense, moe), each, strict=True)), kept
        )
    else:
        total = (dense * each[0] + moe * each[1]) * kept
    if stage == 0:
        embedding = tokens * (8 + shape.hidden) * kept
        total += embedding / w.dims.tp if w.split_sequence else embedding
    if last:
        total += shape.mtp_layers * layer_bytes(w, moe=bool(shape.moe_layers[-1]))
        total += _output_bytes(w) * (1 + shape.mtp_layers)
    return total if w.split_sequence else total * _WITHOUT_SP


_WITHOUT_SP = 1.05
"""Factor for temporaries, from Megatron's `compute_activation_memory_without_sp`."""


def _output_bytes(w: Workload) -> float:
    """Bytes of the output layer's input and of the logits in FP32.

    Without sequence parallelism 2 bytes each, as Megatron counts.
    """
    vocabulary, hidden = w.shape.padded_vocab(w.dims.tp), w.shape.hidden
    if w.split_sequence:
        return 4 * w.tokens * (hidden + vocabulary) / w.dims.tp
    return 2 * w.tokens * (vocabulary / w.dims.tp + hidden)


def _recomputed(w: Workload, layers: int, largest: float, whole: float, kept: float) -> float:
    """Full recomputation keeps the inputs of all units, and all of one unit at a time (arXiv:2205.05198)."""
    boundary = 2 * w.tokens * w.shape.hidden / (w.dims.tp if w.split_sequence else 1)
    unit = w.recompute.layers
    if w.recompute.method == "block":
        recomputed = min(unit, layers)
        rest = whole * (layers - recomputed) / layers if layers else 0.0
        return (boundary * recomputed + rest) * kept + largest
    return boundary * -(-layers // unit) * kept + largest * min(unit, layers)


def layer_bytes(w: Workload, *, moe: bool) -> float:
    """Bytes that one layer keeps of one micro batch on one rank.

    Dense with sequence parallelism: s b (18 h + 4 f) / t, without: s b h (10 + 24 / t), both as in Megatron,
    where s is the sequence length, b the micro batch, h the hidden size, f the feed-forward width and t TP.
    18 h are inputs and outputs of the norms, queries, keys, values, the attention's output and dropout masks.
    Latent attention replaces queries to output with its own tensors. A layer with experts has, for each of
    the k experts of a token, its input and three widths of 2 bytes if gated (two products, one activation),
    else two. FP8 keeps inputs of linear layers in one byte, and the attention's output twice.
    """
    shape, tokens, modules = w.shape, w.tokens, _modules(w)
    h, fp8 = shape.hidden, w.numerics.fp8
    attention = 18.0 * h - (h if fp8 else 0)
    if shape.latent is not None:
        attention += _latent_width(shape, "mla_up_proj" in modules) - 8 * h
    if "layernorm" in modules:
        attention -= 4 * h - (2 * h if fp8 else 0)
    if w.execution.unfused_attention and w.recompute.granularity is None:
        attention += 5 * shape.heads * w.seq_length / w.dims.cp
    if not moe:
        if not w.split_sequence:
            return tokens * (10 * h + (24 * h + attention - 18 * h) / w.dims.tp)
        width = 0 if "mlp" in modules else (3 if fp8 else 4) * shape.ffn
        return tokens * (attention + width) / w.dims.tp
    feed_forward = _expert_width(w, modules)
    if not w.split_sequence:
        return tokens * (10 * h + (attention - 10 * h + feed_forward) / w.dims.tp)
    return tokens * (attention + feed_forward) / w.dims.tp


def _modules(w: Workload) -> frozenset[str]:
    return w.recompute.modules if w.recompute.granularity == "selective" else frozenset()


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
    product = 4 if shape.gated else 2
    result = 1 if fp8 else 2
    router = 8.0 * shape.experts
    shared = 0.0 if modules & {"shared_experts", "moe"} else (product + result) * shape.shared_ffn
    if "moe" in modules:
        return router
    activated = 0 if "moe_act" in modules else result * shape.expert_ffn
    routed = shape.topk * (result * shape.hidden * w.dims.etp + product * shape.expert_ffn + activated)
    return router + shared + routed


def _runtime(w: Workload) -> int:
    """Bytes that are neither states nor activations: runtime, communicators, communication buffers."""
    shape, tokens = w.shape, w.tokens
    groups = (
        w.dims.tp,
        w.dims.cp,
        w.dims.pp,
        w.dims.dp * w.dims.cp,
        w.dims.ep,
        w.dims.expert_dp if shape.is_moe else 1,
    )
    communicators = sum(size > 1 for size in groups) * COMMUNICATOR_BYTES
    gathered = 2 * tokens * shape.hidden if w.dims.tp > 1 else 0
    dispatched = (
        4 * tokens * shape.topk * shape.hidden * w.dims.etp / w.dims.tp
        if shape.is_moe and w.dims.ep > 1
        else 0
    )
    return int(CONTEXT_BYTES + communicators + gathered + dispatched)

"""Memory of the GPU that needs most, by part. All sizes in bytes.

States follow `megatron/training/theoretical_memory_usage.py` of megatron-core 0.19.2, and so do activations
of a GPT. What that file does not cover (query groups, gated products, experts, latent attention, context
parallelism, FP8, full recomputation, uneven stages, the stages after the first) follows the tensors that
Megatron keeps.
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
    parts = (
        (states(w, stage), max(activations(w, stage), optimizer_step(w, stage))) for stage in sorted(stages)
    )
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


def trained_parameters(w: Workload, stage: int) -> tuple[float, float, float]:
    """Numbers of parameters of one rank that are trained, as `held_parameters` groups them."""
    if w.adapters is None:
        return held_parameters(w, stage)
    return w.stage_layers[stage] * w.adapters.parameters_of_layer(w.shape) / w.dims.tp, 0.0, 0.0


def states(w: Workload, stage: int) -> States:
    """Bytes of weights, gradients and optimizer states of one rank of a stage.

    The distributed optimizer splits the optimizer states over DP x CP ranks, those of experts over their own
    data-parallel group (Megatron's estimate leaves CP out). Frozen weights have neither gradients nor
    optimizer states.
    """
    layers, experts, vocabulary = held_parameters(w, stage)
    trained = trained_parameters(w, stage)
    n = w.numerics
    held = layers + experts + vocabulary + (sum(trained) if w.adapters else 0)
    copies, expert_copies = w.optimizer_copies
    return States(
        weights=n.weight * held + n.fp8_copies * (layers + experts),
        gradients=n.gradient * sum(trained),
        optimizer=n.optimizer * ((trained[0] + trained[2]) / copies + trained[1] / expert_copies),
    )


def optimizer_step(w: Workload, stage: int) -> float:
    """Bytes of FP32 copies of 16-bit moments during the optimizer's step, when no activations are kept.

    Experts have an optimizer of their own, which steps before or after that of the other parameters.
    """
    layers, experts, vocabulary = trained_parameters(w, stage)
    copies, expert_copies = w.optimizer_copies
    return w.numerics.step_copies * max((layers + vocabulary) / copies, experts / expert_copies)


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
    """Bytes that forward passes keep for backward passes on one rank of a stage.

    Those of each layer (`layer_bytes`) for all micro batches in flight (`micro_batches_kept`). The first
    stage adds the embedding's input, 8 bytes a token, and its dropout mask; the last one the output layer.
    """
    shape, tokens, kept = w.shape, w.tokens, micro_batches_kept(w, stage)
    moe = w.moe_of_stage[stage]
    dense = w.stage_layers[stage] - moe
    each = (layer_bytes(w, moe=False) if dense else 0.0, layer_bytes(w, moe=True) if moe else 0.0)
    if w.adapters is not None:
        beside = w.adapters.kept_of_layer(shape, tokens, w.dims.tp)
        each = (each[0] + beside if dense else 0.0, each[1] + beside if moe else 0.0)
    last = stage == w.dims.pp - 1
    if w.recompute.granularity == "full":
        total = _recomputed(
            w, dense + moe, max(each), sum(n * b for n, b in zip((dense, moe), each, strict=True)), kept
        )
    else:
        total = (dense * each[0] + moe * each[1]) * kept
    if stage == 0:
        embedding = tokens * (8 + (shape.hidden if shape.dropout else 0)) * kept
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
    """Bytes of activations with full recomputation, for `kept` micro batches.

    It keeps the inputs of all units, and all of one unit at a time (arXiv:2205.05198). `largest` is the bytes
    of the largest layer, `whole` those of all `layers`, each of one micro batch.
    """
    boundary = 2 * w.tokens * w.shape.hidden / (w.dims.tp if w.split_sequence else 1)
    unit = w.recompute.layers
    if w.recompute.method == "block":
        recomputed = min(unit, layers)
        rest = whole * (layers - recomputed) / layers if layers else 0.0
        return (boundary * recomputed + rest) * kept + largest
    return boundary * -(-layers // unit) * kept + largest * min(unit, layers)


def layer_bytes(w: Workload, *, moe: bool) -> float:
    """Bytes that one layer keeps of one micro batch on one rank.

    The tensors that Megatron's layers with Transformer Engine save for the backward pass, of 2 bytes an
    element, per token: input and output of both norms, 8 h, where h is the hidden size; queries, keys, values
    and attention's output, of the width of all heads or of all groups; the inputs of norms of queries and
    keys; the masks of two dropouts, 2 h. Then what the feed-forward part keeps: the first product, of twice
    the width if gated, and the activation. For a GPT with as many groups as heads this is (18 h + 4 f) / t,
    as `theoretical_memory_usage.py` counts for every model. Latent attention has its own tensors. FP8 keeps
    inputs of linear layers in one byte, and the attention's output twice.

    With sequence parallelism all of it is split over t tensor-parallel ranks, without only what is not 8 h
    and masks.
    """
    shape, modules, fp8 = w.shape, _modules(w), w.numerics.fp8
    norms = (6.0 if fp8 else 8.0) * shape.hidden
    if "layernorm" in modules:
        norms -= (2 if fp8 else 4) * shape.hidden
    whole = norms + (2 * shape.hidden if shape.dropout else 0)
    split = _attention_width(w, modules)
    if w.execution.unfused_attention and w.recompute.granularity is None:
        split += 5 * shape.heads * w.seq_length / w.dims.cp
    split += _expert_width(w, modules) if moe else _dense_width(w, modules)
    return w.tokens * (split / w.dims.tp + whole / (w.dims.tp if w.split_sequence else 1))


def _attention_width(w: Workload, modules: frozenset[str]) -> float:
    """Bytes per token of queries, keys, values, the inputs of their norms and the attention's output."""
    shape, fp8 = w.shape, w.numerics.fp8
    if shape.latent is not None:
        output = shape.heads * shape.latent.v_dim
        return _latent_width(shape, "mla_up_proj" in modules) + (output if fp8 else 0)
    heads, groups = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    normalized = 2.0 * (heads + groups) if shape.qk_norm else 0.0
    return 2.0 * (heads + 2 * groups) + normalized + (3 if fp8 else 2) * heads


def _dense_width(w: Workload, modules: frozenset[str]) -> float:
    """Bytes per token of the first product of a dense feed-forward part and of its activation."""
    if "mlp" in modules:
        return 0.0
    product = 4 if w.shape.gated else 2
    return (product + (1 if w.numerics.fp8 else 2)) * w.shape.ffn


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
    return int(outside_allocator(w) + _buffers(w))


def outside_allocator(w: Workload) -> float:
    """Bytes that PyTorch's allocator does not count: runtime and communicators."""
    shape = w.shape
    groups = (
        w.dims.tp,
        w.dims.cp,
        w.dims.pp,
        w.dims.dp * w.dims.cp,
        w.dims.ep,
        w.dims.expert_dp if shape.is_moe else 1,
    )
    return CONTEXT_BYTES + sum(size > 1 for size in groups) * COMMUNICATOR_BYTES


def _buffers(w: Workload) -> float:
    """Bytes of tensors that are gathered or dispatched, one layer at a time."""
    shape, tokens = w.shape, w.tokens
    gathered = 2 * tokens * shape.hidden if w.dims.tp > 1 else 0
    dispatched = (
        4 * tokens * shape.topk * shape.hidden * w.dims.etp / w.dims.tp
        if shape.is_moe and w.dims.ep > 1
        else 0
    )
    return gathered + dispatched

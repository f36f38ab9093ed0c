"""Memory of the GPU that needs most, by part. All sizes in bytes.

States follow `megatron/training/theoretical_memory_usage.py` of megatron-core 0.19.2, and so do activations
of a GPT. What that file does not cover (query groups, gated products, experts, latent attention, context
parallelism, FP8, full recomputation, uneven stages, the stages after the first, layers of hybrid models)
follows the tensors that Megatron keeps.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from megatron_operator.api.status import MemoryPerGpu, Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate import hardware
from megatron_operator.planner.estimate.diffusion import outside_parameters
from megatron_operator.planner.estimate.full_sharding import FullSharding
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.estimate.kept import (
    layer_bytes,
    recomputed_score_bytes,
    stream_bytes,
    tower_bytes,
)
from megatron_operator.planner.estimate.layers import LayerKind, Tower
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds
from megatron_operator.planner.estimate.parameters import (
    LayerParameters,
    layer_parameters,
    mtp_copies,
    mtp_parameters,
    per_layer_projection,
)
from megatron_operator.planner.estimate.residual_streams import head_parameters
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
    """Memory of the pipeline stage that needs most: of those with the same layers the first holds most.

    `capacity` is the accelerator's bytes; without one (`cpu`) there is no accelerator runtime, and `other`
    is 0.
    """
    parts = (_held_and_kept(w, stage) for stage in sorted({*w.different_stages, w.dims.pp - 1}))
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


def _held_and_kept(w: Workload, stage: int) -> tuple[States, float]:
    """States of a rank, and the most bytes that it keeps beside them in a step."""
    held = held_parameters(w, stage)
    if w.fully_sharded:
        sharding = _full_sharding(w, held)
        kept = max(activations(w, stage), sharding.before_sharding - sharding.beside)
        return States(sharding.weights, sharding.gradients, sharding.optimizer), kept
    trained = _trained(w, stage, held)
    return _states(w, held, trained), max(activations(w, stage), _optimizer_step(w, trained))


@lru_cache(maxsize=64)
def _layers(shape: ModelShape) -> tuple[dict[LayerKind, LayerParameters], LayerParameters]:
    """Parameters of a layer of each kind, and of a multi-token prediction."""
    return {kind: layer_parameters(shape, kind) for kind in distinct_kinds(shape)}, mtp_parameters(shape)


Parameters = tuple[float, float, float]
"""Numbers of parameters of one rank: (layers without experts, experts, embedding and output)."""


def held_parameters(w: Workload, stage: int) -> Parameters:
    """Parameters that one rank of a stage holds.

    Attention and dense feed-forward weights are split over TP, experts over ETP x EP; norms and routers are
    replicated. The last stage has the output weights and, for multi-token prediction or tied weights, a copy
    of the embedding.
    """
    shape = w.shape
    of_kind, mtp = _layers(shape)
    last = stage == w.dims.pp - 1
    parts = [(of_kind[kind], count) for kind, count in w.kinds_of_stage[stage].items()]
    parts.append((mtp, mtp_copies(shape) if last else 0))
    tensor = sum(count * each.tensor for each, count in parts)
    layers = tensor / w.dims.tp + sum(count * each.replicated for each, count in parts)
    experts = sum(count * each.experts for each, count in parts) / (w.dims.etp * w.dims.ep)
    if stage == 0:
        layers += sum(_of_rank(w, tower, tower.parameters) for tower in shape.towers)
        layers += outside_parameters(shape) if shape.diffusion else 0
    table = shape.padded_vocab(w.dims.tp) * shape.hidden / w.dims.tp
    vocabulary = 0.0
    if stage == 0:
        vocabulary += table * (1 + shape.layers * shape.per_layer_width / shape.hidden)
        layers += per_layer_projection(shape)
        vocabulary += shape.max_positions * shape.hidden if shape.learned_positions else 0
    if last:
        final_norm = 0 if shape.diffusion else shape.hidden * shape.norm_size
        layers += final_norm + head_parameters(shape.hidden, shape.streams)
        copies = (not shape.tied or stage > 0) + (stage > 0 and shape.mtp_layers > 0 and not shape.tied)
        vocabulary += copies * table
    return layers, experts, vocabulary


def _of_rank(w: Workload, tower: Tower, parameters: int) -> float:
    """Parameters of a tower that one rank has of so many."""
    return parameters / (w.dims.tp if tower.split else 1)


def trained_parameters(w: Workload, stage: int) -> Parameters:
    """Parameters that one rank of a stage trains."""
    return _trained(w, stage, held_parameters(w, stage))


def _trained(w: Workload, stage: int, parameters: Parameters) -> Parameters:
    """As `trained_parameters`, of a rank that holds `parameters`."""
    if w.adapters is None:
        towers = w.shape.towers if stage == 0 else ()
        if w.language_frozen:
            return sum(_of_rank(w, tower, tower.trained_without(w.frozen)) for tower in towers), 0.0, 0.0
        held, experts, vocabulary = parameters
        held -= sum(_of_rank(w, x, x.parameters - x.trained_without(w.frozen)) for x in towers)
        return held, experts, vocabulary
    layers = Counter(w.kinds_of_stage[stage])
    if stage == w.dims.pp - 1:
        layers.update(mtp_copies(w.shape) * w.shape.mtp_kinds)
    beside = of_experts = 0.0
    for kind, count in layers.items():
        each = w.adapters.parameters_of_layer(w.shape, kind)
        beside, of_experts = beside + count * each[0], of_experts + count * each[1]
    return beside / w.dims.tp, of_experts / w.dims.etp, 0.0


def states(w: Workload, stage: int) -> States:
    """Bytes of weights, gradients and optimizer states of one rank of a stage.

    The distributed optimizer splits the optimizer states over DP x CP ranks, those of experts over their own
    data-parallel group (Megatron's estimate leaves CP out). Frozen weights have neither gradients nor
    optimizer states.
    """
    held = held_parameters(w, stage)
    if w.fully_sharded:
        sharding = _full_sharding(w, held)
        return States(sharding.weights, sharding.gradients, sharding.optimizer)
    return _states(w, held, _trained(w, stage, held))


def _states(w: Workload, parameters: Parameters, trained: Parameters) -> States:
    layers, experts, vocabulary = parameters
    n = w.numerics
    held = layers + experts + vocabulary + (sum(trained) if w.adapters else 0)
    copies, expert_copies = w.optimizer_copies
    return States(
        weights=n.weight * held + n.fp8_copies * (layers + experts),
        gradients=n.gradient * sum(trained),
        optimizer=n.optimizer * ((trained[0] + trained[2]) / copies + trained[1] / expert_copies),
    )


def _full_sharding(w: Workload, held: Parameters) -> FullSharding:
    """Megatron FSDP of a model without experts, whose layers are its units."""
    layers, _, vocabulary = held
    of_kind, _ = _layers(w.shape)
    unit = max(each.tensor / w.dims.tp + each.replicated for each in of_kind.values())
    return FullSharding(w.numerics, layers, vocabulary, unit, w.dims.dp)


def host_bytes(w: Workload) -> float:
    """Bytes of optimizer states, and of the gradients beside them, that a rank has in the host's memory.

    Of the pipeline stage that needs most; without the rounding of pinned memory to powers of two.
    """
    copies, expert_copies = w.optimizer_copies
    of_stages = (trained_parameters(w, stage) for stage in {*w.different_stages, w.dims.pp - 1})
    shards = ((each[0] + each[2]) / copies + each[1] / expert_copies for each in of_stages)
    return w.numerics.host * max(shards)


def _optimizer_step(w: Workload, trained: Parameters) -> float:
    """Bytes of FP32 copies of 16-bit gradients and moments during the optimizer's step.

    No activations are kept then. Experts have an optimizer of their own, which steps before or after that of
    the other parameters; the gradients of both are copied before (`ChainedOptimizer.prepare_grads`).
    """
    layers, experts, vocabulary = trained
    copies, expert_copies = w.optimizer_copies
    shard, of_experts = (layers + vocabulary) / copies, experts / expert_copies
    n = w.numerics
    return n.gradient_copies * (shard + of_experts) + n.step_copies * max(shard, of_experts)


def micro_batches_kept(w: Workload, stage: int) -> float:
    """Maximum number of micro batches whose activations a stage holds, for all layers of the stage.

    1F1B schedule with p stages: p - stage, or all micro batches if there are fewer. Interleaved with v
    virtual stages: 2 (p - stage - 1) + (v - 1) p + 1 chunks of 1/v of the stage's layers, which for the first
    stage is p times the factor 1 + (p - 1) / (p v) of arXiv:2205.05198, or all chunks
    (`get_pp_rank_microbatches`).
    """
    if w.dims.vp > 1:
        chunks = 2 * (w.dims.pp - stage - 1) + (w.dims.vp - 1) * w.dims.pp + 1
        return min(chunks / w.dims.vp, w.micro_batches)
    return min(w.dims.pp - stage, w.micro_batches)


def activations(w: Workload, stage: int) -> float:
    """Bytes that forward passes keep for backward passes on one rank of a stage.

    Those of each layer (`layer_bytes`) for all micro batches in flight (`micro_batches_kept`). The first
    stage adds the embedding's input, 8 bytes a token, its dropout mask and towers; the last one the output
    layer.
    """
    shape, tokens, kept = w.shape, w.tokens, micro_batches_kept(w, stage)
    layers = w.kinds_of_stage[stage]
    each = {kind: layer_bytes(w, kind) for kind in layers}
    if w.adapters is not None:
        each = {
            kind: kept_bytes + w.adapters.kept_of_layer(shape, kind, tokens, w.dims.tp)
            for kind, kept_bytes in each.items()
        }
    last = stage == w.dims.pp - 1
    whole = sum(count * each[kind] for kind, count in layers.items())
    if w.recompute.granularity == "full":
        total = _recomputed(w, sum(layers.values()), max(each.values(), default=0.0), whole, kept)
    else:
        total = whole * kept + sum(count * stream_bytes(w, kind) for kind, count in layers.items())
        total += max((recomputed_score_bytes(w, kind) for kind in layers), default=0.0)
    if stage == 0:
        embedding = tokens * (8 + (shape.hidden if shape.dropout else 0)) * kept
        total += embedding / w.dims.tp if w.split_sequence else embedding
        total += tower_bytes(w) * kept
    if last:
        total += shape.mtp_layers * sum(layer_bytes(w, kind) for kind in shape.mtp_kinds)
        total += _output_bytes(w) * (1 + shape.mtp_layers)
    return total if w.split_sequence else total * _WITHOUT_SP


_WITHOUT_SP = 1.05
"""Factor for temporaries, from Megatron's `compute_activation_memory_without_sp`."""


def _output_bytes(w: Workload) -> float:
    """Bytes of the output layer's input and of the logits in FP32.

    Without sequence parallelism 2 bytes each, as Megatron counts; 4 where all is in FP32.
    """
    vocabulary, hidden = w.shape.padded_vocab(w.dims.tp), w.shape.hidden
    widths = w.numerics.widths
    if w.split_sequence:
        return 4 * w.tokens * (widths * hidden + vocabulary) / w.dims.tp
    return 2 * widths * w.tokens * (vocabulary / w.dims.tp + hidden)


def _recomputed(w: Workload, layers: int, largest: float, whole: float, kept: float) -> float:
    """Bytes of activations with full recomputation, for `kept` micro batches.

    It keeps the inputs of all units, and all of one unit at a time (arXiv:2205.05198). `largest` is the bytes
    of the largest layer, `whole` those of all `layers`, each of one micro batch. Megatron counts units within
    each virtual stage.
    """
    inputs = 2 * w.numerics.widths * w.tokens * w.shape.streams * w.shape.hidden
    boundary = inputs / (w.dims.tp if w.split_sequence else 1)
    virtual_stage = -(-layers // w.dims.vp)
    unit = min(w.recompute.layers, virtual_stage) or 1
    if w.recompute.method == "block":
        recomputed = min(unit * w.dims.vp, layers)
        rest = whole * (layers - recomputed) / layers if layers else 0.0
        return (boundary * recomputed + rest) * kept + largest
    return boundary * -(-virtual_stage // unit) * w.dims.vp * kept + largest * min(unit, layers)


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
        4 * tokens * shape.topk * shape.expert_hidden * w.dims.etp / w.dims.tp
        if shape.is_moe and w.dims.ep > 1
        else 0
    )
    return w.numerics.widths * (gathered + dispatched)

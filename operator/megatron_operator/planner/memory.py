"""Memory of the fullest GPU, by part.

Model states after "Distributed optimizer" of Megatron's documentation: 18 bytes a parameter, or 6 + 12/DP
with the distributed optimizer. Activations after Korthikanti et al. 2022 (arXiv:2205.05198, table 2) in the
form of `megatron/training/theoretical_memory_usage.py`, attention computed without storing its probabilities.
"""

from dataclasses import dataclass
from typing import Literal

from megatron_operator.api.status import MemoryPerGpu
from megatron_operator.planner.accelerators import GIB
from megatron_operator.planner.architecture import Architecture
from megatron_operator.planner.parameters import LayerParameters, layer_parameters, mtp_parameters

RUNTIME_BYTES = 4 * GIB
"""CUDA context, NCCL buffers, cuBLAS workspaces and fragmentation: an allowance, not a formula."""


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A layout as far as memory depends on it."""

    seq_length: int
    micro_batch: int
    micro_batches: int
    tp: int
    cp: int
    ep: int
    etp: int
    dense_copies: int
    """Ranks over which states of everything but experts are split: DP x CP."""
    expert_copies: int
    """Ranks over which states of experts are split: expert-DP."""
    stage_layers: tuple[int, ...]
    virtual: int
    sequence_parallel: bool
    distributed_optimizer: bool
    recompute: Literal["full", "selective"] | None
    half_precision: bool
    """BF16 or FP16 weights with FP32 main copies; else everything is FP32."""


def memory_per_gpu(a: Architecture, q: MemoryQuestion, capacity: int | None) -> MemoryPerGpu:
    """Bytes on the fullest GPU: the first stage for activations, the fuller of first and last for states."""
    stages = len(q.stage_layers)
    states = max((_states(a, q, stage) for stage in {0, stages - 1}), key=sum)
    activations = _activations(a, q)
    weights, gradients, optimizer = states
    return MemoryPerGpu(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        other=RUNTIME_BYTES if capacity is not None else 0,
        total=sum(states) + activations + (RUNTIME_BYTES if capacity is not None else 0),
        capacity=capacity,
    )


def _held(layer: LayerParameters, q: MemoryQuestion) -> tuple[float, float]:
    """Parameters that one rank holds: (dense, experts)."""
    return layer.tensor / q.tp + layer.replicated, layer.experts / (q.etp * q.ep)


def _states(a: Architecture, q: MemoryQuestion, stage: int) -> tuple[int, int, int]:
    """Weights, gradients and optimizer states of one rank of a stage, in bytes."""
    first_layer = sum(q.stage_layers[:stage])
    kinds = a.moe_layers[first_layer : first_layer + q.stage_layers[stage]]
    layers = [layer_parameters(a, moe=is_moe) for is_moe in kinds]
    last = stage == len(q.stage_layers) - 1
    if last:
        layers += [mtp_parameters(a)] * a.mtp_layers
    dense = experts = 0.0
    for layer in layers:
        held_dense, held_experts = _held(layer, q)
        dense, experts = dense + held_dense, experts + held_experts
    vocabulary = a.padded_vocab(q.tp) * a.hidden / q.tp
    if stage == 0:
        dense += vocabulary + (a.max_positions * a.hidden if a.learned_positions else 0)
    if last:
        dense += a.hidden * a.norm_size
        if not a.tied or stage > 0:
            dense += vocabulary
    weight_bytes, optimizer_bytes = (2, 12) if q.half_precision else (4, 8)
    dense_copies, expert_copies = (q.dense_copies, q.expert_copies) if q.distributed_optimizer else (1, 1)
    held = dense + experts
    optimizer = optimizer_bytes * (dense / dense_copies + experts / expert_copies)
    return int(weight_bytes * held), int(4 * held), int(optimizer)


def _activations(a: Architecture, q: MemoryQuestion) -> int:
    """Bytes of activations on a rank of the first stage, with all micro batches that are in flight there."""
    stages, b = len(q.stage_layers), q.micro_batch
    s = q.seq_length / q.cp
    h, t = a.hidden, q.tp
    in_flight = min(stages, q.micro_batches)
    penalty = 1.0
    if q.virtual > 1:
        penalty, in_flight = 1 + (stages - 1) / (stages * q.virtual), stages
    layers = q.stage_layers[0]
    moe_layers = sum(a.moe_layers[:layers])
    whole = [_layer_bytes(a, q, moe=False)] * (layers - moe_layers) + [
        _layer_bytes(a, q, moe=True)
    ] * moe_layers
    if q.recompute == "full":
        kept = 2 * s * b * h / (t if q.sequence_parallel else 1)
        per_batch = kept * layers + max(whole)
    else:
        per_batch = sum(whole)
    split = t if q.sequence_parallel else 1
    embedding = (8 * s * b + s * b * h) / split
    total = (per_batch + embedding) * in_flight * penalty
    if stages == 1:
        total += 4 * s * b * h * (1 + a.padded_vocab(t) / h) / t
    return int(total)


def _layer_bytes(a: Architecture, q: MemoryQuestion, *, moe: bool) -> float:
    """Bytes that one layer keeps of one micro batch on one rank."""
    s, b, h, t = q.seq_length / q.cp, q.micro_batch, a.hidden, q.tp
    ffn = a.topk * a.expert_ffn + a.shared_ffn if moe else a.ffn
    if q.sequence_parallel or t == 1:
        return s * b * (18 * h + 4 * ffn) / t
    return s * b * (10 * h + (8 * h + 4 * ffn) / t)

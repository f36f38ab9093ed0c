"""A layout in full, and every rule that Megatron or the hardware has for it.

One set of rules checks what a user asks for and sorts out what the planner may choose.
"""

from dataclasses import dataclass
from typing import Literal

from megatron_operator.api.errors import FieldError
from megatron_operator.planner.estimate.model_shape import ModelShape
from megatron_operator.planner.search.pipeline_split import StageSplit

Recompute = Literal["full", "selective"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of every parallel group; no `split` where the layers cannot fill the stages."""

    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    split: StageSplit | None


@dataclass(frozen=True, slots=True)
class ConstraintContext:
    """What a layout has to agree with."""

    shape: ModelShape
    world: int
    pod: int
    """Ranks of one pod."""
    nvlink_ranks: int
    """Ranks of one NVLink domain: those of a pod, or of several."""
    seq_length: int
    sequence_parallel: bool
    """Whether tensor-parallel groups also split the sequence."""
    cp_comm_type: str | None
    local_layers: bool
    """Layers built without Transformer Engine."""


_P = "spec.parallelism."


def layout_errors(layout: Layout, on: ConstraintContext) -> list[FieldError]:
    """Everything that is wrong with the layout, each with its numbers and what to set instead."""
    errors: list[FieldError] = []
    _check_world(layout, on, errors)
    _check_tensor(layout, on, errors)
    _check_sequence(layout, on, errors)
    _check_experts(layout, on, errors)
    return errors


def _divisors(number: int) -> str:
    return ", ".join([str(d) for d in range(1, number + 1) if number % d == 0][:12])


def _in_one_domain(on: ConstraintContext) -> bool:
    """Whether the run's pods all lie in one NVLink domain: a worker's affinity cannot say which pods belong
    together, only that all do."""
    return on.pod < on.world <= on.nvlink_ranks


def _tensor_sizes(on: ConstraintContext) -> str:
    """Sizes of TP that pod, NVLink domain, heads and groups all take."""
    shape = on.shape
    sizes = [
        tp
        for tp in range(1, (on.world if _in_one_domain(on) else on.pod) + 1)
        if (on.pod % tp == 0 or tp % on.pod == on.world % tp == 0)
        and shape.heads % tp == 0
        and (shape.latent is not None or shape.groups % tp == 0 or tp % shape.groups == 0)
    ]
    return ", ".join(map(str, sizes))


def _check_world(layout: Layout, on: ConstraintContext, errors: list[FieldError]) -> None:
    model_parallel = layout.tp * layout.pp * layout.cp
    if on.world % model_parallel == 0:
        return
    largest = max(
        ("tensorModelParallelSize", layout.tp),
        ("pipelineModelParallelSize", layout.pp),
        ("contextParallelSize", layout.cp),
        key=lambda size: size[1],
    )
    whole = on.world // model_parallel * model_parallel
    counts = f"{whole} or {whole + model_parallel}" if whole else f"{model_parallel}"
    errors.append(
        FieldError(
            f"{_P}{largest[0]}",
            f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} = {model_parallel} does not divide "
            f"accelerator.count {on.world}",
            f"set sizes whose product divides {on.world}, or accelerator.count to {counts}",
        )
    )


def _check_tensor(layout: Layout, on: ConstraintContext, errors: list[FieldError]) -> None:
    shape, tp = on.shape, layout.tp
    field = f"{_P}tensorModelParallelSize"
    if on.pod % tp and tp % on.pod == 0 and tp <= on.nvlink_ranks < on.world:
        errors.append(
            FieldError(
                field,
                f"{tp} spans {tp // on.pod} pods, and {on.world} accelerators are more than an NVLink "
                f"domain's {on.nvlink_ranks}: nothing holds each TP group within one",
                f"set one of {_tensor_sizes(on)}, or accelerator.count to at most {on.nvlink_ranks}",
            )
        )
    elif on.pod % tp and not (_in_one_domain(on) and tp % on.pod == 0):
        errors.append(
            FieldError(
                field,
                f"{tp} does not divide the {on.pod} accelerators of a pod: a TP group would leave its node",
                f"set one of {_tensor_sizes(on)}",
            )
        )
    if shape.heads % tp:
        errors.append(
            FieldError(
                field,
                f"{tp} does not divide numAttentionHeads {shape.heads}",
                f"set one of {_tensor_sizes(on)}",
            )
        )
    if shape.latent is None and shape.groups % tp and tp % shape.groups:
        errors.append(
            FieldError(
                field,
                f"{tp} is neither a divisor nor a multiple of numQueryGroups {shape.groups}",
                f"set one of {_tensor_sizes(on)}",
            )
        )
    widths = {"ffnHiddenSize": shape.ffn if not all(shape.moe_layers) else 0}
    widths["moeSharedExpertIntermediateSize"] = shape.shared_ffn
    for name, width in widths.items():
        if width % tp:
            errors.append(
                FieldError(field, f"{tp} does not divide {name} {width}", f"set a divisor of {width}")
            )


def stages_error(layout: Layout, shape: ModelShape) -> FieldError:
    field = f"{_P}pipelineModelParallelSize"
    if layout.pp > shape.layers:
        return FieldError(
            field, f"PP {layout.pp} is above numLayers {shape.layers}", f"set at most {shape.layers}"
        )
    return FieldError(
        field,
        f"numLayers {shape.layers} is not divisible by PP {layout.pp}",
        f"set one of {_divisors(shape.layers)}, or say the split with decoderFirst/LastPipelineNumLayers, "
        "accountForEmbedding/LossInPipelineSplit or pipelineModelParallelLayout",
    )


def _check_sequence(layout: Layout, on: ConstraintContext, errors: list[FieldError]) -> None:
    shape, cp, tp, seq = on.shape, layout.cp, layout.tp, on.seq_length
    field = f"{_P}contextParallelSize"
    if cp > 1:
        if on.local_layers:
            errors.append(
                FieldError(field, f"CP {cp} needs Transformer Engine, layers are local", "leave it out")
            )
        if seq % (2 * cp):
            errors.append(
                FieldError(
                    field,
                    f"seqLength {seq} is not divisible by 2 x CP {cp} = {2 * cp}",
                    f"set a CP of which twice divides {seq}",
                )
            )
        if (shape.sinks or shape.window) and on.cp_comm_type != "a2a":
            what = "attention sinks" if shape.sinks else "windowed attention"
            errors.append(
                FieldError(
                    f"{_P}cpCommType",
                    f"is {on.cp_comm_type or 'p2p'}, but Transformer Engine splits the sequences of {what} "
                    "with a2a only",
                    "set a2a, or contextParallelSize 1",
                )
            )
        local_heads, local_groups = shape.heads // tp, max(shape.groups // tp, 1)
        if on.cp_comm_type == "a2a" and (local_heads % cp or local_groups % cp):
            errors.append(
                FieldError(
                    f"{_P}cpCommType",
                    f"a2a deals {local_heads} heads and {local_groups} groups of a TP rank to CP {cp} ranks",
                    "set p2p, or a CP that divides both",
                )
            )
    if on.sequence_parallel and tp > 1 and seq % (cp * tp):
        errors.append(
            FieldError(
                f"{_P}tensorModelParallelSize",
                f"sequence parallelism splits seqLength {seq} over CP {cp} x TP {tp} = {cp * tp} ranks",
                f"set a seqLength that is a multiple of {cp * tp}",
            )
        )


def _check_experts(layout: Layout, on: ConstraintContext, errors: list[FieldError]) -> None:
    shape, ep, etp = on.shape, layout.ep, layout.etp
    field = f"{_P}expertModelParallelSize"
    if not shape.experts:
        if ep > 1:
            errors.append(FieldError(field, f"EP {ep}, but the model has no experts", "leave it out"))
        if etp != layout.tp:  # what it is for a model without experts, in Megatron as here
            errors.append(
                FieldError(
                    f"{_P}expertTensorParallelSize",
                    f"ETP {etp}, but the model has no experts",
                    "leave it out",
                )
            )
        return
    if shape.experts % ep:
        errors.append(
            FieldError(
                field,
                f"EP {ep} does not divide numExperts {shape.experts}",
                f"set one of {_divisors(shape.experts)}",
            )
        )
    if on.world % (etp * ep * layout.pp):
        errors.append(
            FieldError(
                field,
                f"ETP {etp} x EP {ep} x PP {layout.pp} = {etp * ep * layout.pp} does not divide "
                f"accelerator.count {on.world}",
                f"set sizes whose product divides {on.world}"
                + (", or expertTensorParallelSize 1" if etp > 1 else ""),
            )
        )
    if shape.expert_ffn % etp:
        errors.append(
            FieldError(
                f"{_P}expertTensorParallelSize",
                f"ETP {etp} does not divide moeFfnHiddenSize {shape.expert_ffn}",
                "set 1",
            )
        )
    if etp > 1 and shape.bias:
        errors.append(
            FieldError(
                f"{_P}expertTensorParallelSize",
                f"ETP {etp}, but Megatron has biased experts at ETP 1 only",
                "set 1, or model.disableBiasLinear true",
            )
        )
    if layout.tp > 1 and not on.sequence_parallel:
        errors.append(
            FieldError(
                f"{_P}tensorModelParallelSize",
                f"TP {layout.tp} with experts needs sequence parallelism, which is off here",
                "set 1, or sequenceParallel true on GPUs",
            )
        )

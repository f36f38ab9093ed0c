"""A layout, and every constraint that Megatron or the hardware puts on it.

The same constraints validate what a user requests and filter what the planner may choose.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import FieldError
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.planner.divisors import divisors, set_one_of
from megatron_operator.planner.estimate.adapters import Adapters
from megatron_operator.planner.estimate.attention_kinds import Compressed
from megatron_operator.planner.estimate.layers import Tower
from megatron_operator.planner.estimate.model_shape import ModelShape, distinct_kinds, ffn_of
from megatron_operator.planner.estimate.shared_selection import selecting_layers, shares_selection
from megatron_operator.planner.search.context_exchange import check_exchange
from megatron_operator.planner.search.pipeline_split import StageSplit
from megatron_operator.planner.search.quantized_widths import quantized_width_errors

Recompute = Literal["full", "selective"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of every parallel group, and the layers of each pipeline stage."""

    dims: ParallelDims
    split: StageSplit | None
    """None where the layers cannot fill the stages."""

    def with_split(self, split: StageSplit) -> "Layout":
        """The same layout with other stages; VP follows from them."""
        return Layout(replace(self.dims, vp=split.virtual or 1), split)


@dataclass(frozen=True, slots=True)
class ConstraintContext:
    """Properties of the model and of the run that a layout must be compatible with."""

    shape: ModelShape
    world: int
    pod: int
    """Ranks of one pod."""
    nvlink_ranks: int
    """Ranks of one NVLink domain: those of one pod, or of several."""
    seq_length: int
    """Tokens of one sample."""
    sequence_parallel: bool
    """Whether tensor-parallel groups also split the sequence."""
    cp_comm_type: str | None
    local_layers: bool
    """Whether layers are built without Transformer Engine."""
    unfused_attention: bool = False
    """Whether Transformer Engine computes attention without a fused kernel."""
    in_fp32: bool = False
    """Whether Transformer Engine computes in FP32, for which it has no fused kernel of attention."""
    whole_norms: bool = False
    """Whether each rank builds norms of the queries and keys of all heads."""
    one_stage: bool = False
    """Whether the model cannot be split into pipeline stages."""
    virtual_stages: bool = True
    """Whether pipeline stages may be virtual ones."""
    splits_itself: bool = False
    """Whether attention splits sequences over ranks without Transformer Engine."""
    has_sequence_parallelism: bool = True
    """Whether the model takes sequence parallelism where it runs."""
    width_multiple: int = 1
    """What widths of linear layers are multiples of on each rank."""
    cp_levels: tuple[int, ...] = ()
    """Ranks of each level of context parallelism; empty without levels."""
    adapters: Adapters | None = None
    """All that is trained, with LoRA."""

    @property
    def in_one_nvlink_domain(self) -> bool:
        """Whether a run of several pods fits one NVLink domain.

        Pod affinity can only place all pods in one domain; it cannot group some of them.
        """
        return self.pod < self.world <= self.nvlink_ranks

    @property
    def split_rank(self) -> int:
        """Rank of the adapters that TP splits; 0 where it splits none."""
        if self.adapters is None or not self.adapters.splits_rank(self.shape):
            return 0
        return self.adapters.dim


_HASH_LAYERS = 3
"""`num_hash_layers` of DeepSeek-V4 Flash and Pro."""
_P = "spec.parallelism."


def layout_errors(layout: Layout, context: ConstraintContext) -> list[FieldError]:
    """All constraints that the layout violates, each with its numbers and what to set instead."""
    found = Diagnostics()
    _check_world(layout.dims, context, found)
    _check_tensor(layout.dims, context, found)
    _check_sequence(layout.dims, context, found)
    _check_experts(layout.dims, context, found)
    if context.width_multiple > 1:
        sizes = _valid_tensor_sizes(context)
        found.extend(quantized_width_errors(context.shape, layout.dims, context.width_multiple, sizes))
    _check_towers(layout, context, found)
    _check_compressed_attention(layout, context, found)
    _check_shared_selection(layout, context.shape, found)
    if context.shape.per_layer_width and layout.dims.pp > 1:
        # `Gemma4DenseProvider.provide` of Megatron-Bridge.
        message = f"{layout.dims.pp} splits a model with perLayerEmbeddingSize"
        found.error(f"{_P}pipelineModelParallelSize", message, "set 1")
    elif context.one_stage and layout.dims.pp > 1:
        message = f"{layout.dims.pp} splits a model that Megatron-Bridge builds in one pipeline stage alone"
        found.error(f"{_P}pipelineModelParallelSize", message, "set 1")
    if layout.dims.vp > 1 and (context.shape.has_special_layers or not context.virtual_stages):
        message = f"{layout.dims.vp} is set, and Megatron-Bridge builds these layers without virtual stages"
        found.error(f"{_P}numVirtualStagesPerPipelineRank", message, "leave it out")
    return found.errors


def _splits_groups(shape: ModelShape, tp: int) -> bool:
    """Whether ranks share groups of queries equally; those with a gate for each head do not share one."""
    return shape.groups % tp == 0 or (tp % shape.groups == 0 and not shape.head_gate)


def _valid_tensor_sizes(context: ConstraintContext) -> list[int]:
    """TP sizes that pod, NVLink domain, heads, query groups and adapters all allow."""
    if context.whole_norms:
        return [1]
    shape, pod, world, rank = context.shape, context.pod, context.world, context.split_rank
    return [
        tp
        for tp in divisors(shape.heads, world if context.in_one_nvlink_domain else pod)
        if (pod % tp == 0 or tp % pod == world % tp == 0)
        and rank % tp == 0
        and (shape.latent is not None or _splits_groups(shape, tp))
    ]


def _check_world(dims: ParallelDims, context: ConstraintContext, found: Diagnostics) -> None:
    """TP x PP x CP divides the number of accelerators."""
    world, model_parallel = context.world, dims.model_parallel
    if world % model_parallel == 0:
        return
    largest = max(
        ("tensorModelParallelSize", dims.tp),
        ("pipelineModelParallelSize", dims.pp),
        ("contextParallelSize", dims.cp),
        key=lambda size: size[1],
    )
    lower = world // model_parallel * model_parallel
    counts = f"{lower} or {lower + model_parallel}" if lower else f"{model_parallel}"
    found.error(
        f"{_P}{largest[0]}",
        f"TP {dims.tp} x PP {dims.pp} x CP {dims.cp} = {model_parallel} does not divide "
        f"accelerator.count {world}",
        f"set sizes whose product divides {world}, or accelerator.count to {counts}",
    )


def _check_tensor(dims: ParallelDims, context: ConstraintContext, found: Diagnostics) -> None:
    """A TP group stays on NVLink, and TP divides heads and widths."""
    shape, tp, pod, world = context.shape, dims.tp, context.pod, context.world
    domain = context.nvlink_ranks
    field, fix = f"{_P}tensorModelParallelSize", set_one_of(_valid_tensor_sizes(context))
    if pod % tp and tp % pod == 0 and tp <= domain < world:
        found.error(
            field,
            f"{tp} spans {tp // pod} pods, and {world} accelerators are more than an NVLink domain's "
            f"{domain}: TP groups cannot be placed within one domain each",
            f"{fix}, or accelerator.count to at most {domain}",
        )
    elif pod % tp and not (context.in_one_nvlink_domain and tp % pod == 0):
        found.error(
            field, f"{tp} does not divide the {pod} accelerators of a pod: a TP group would span nodes", fix
        )
    if context.whole_norms and tp > 1:
        message = f"{tp} splits queries and keys, which the model normalizes over all heads"
        found.error(field, message, "set 1")
    if shape.heads % tp:
        found.error(field, f"{tp} does not divide numAttentionHeads {shape.heads}", fix)
    if shape.latent is None and not _splits_groups(shape, tp):
        kinds = "no divisor" if shape.head_gate else "neither a divisor nor a multiple"
        found.error(field, f"{tp} is {kinds} of numQueryGroups {shape.groups}", fix)
    dense = {ffn_of(shape, kind) for kind in distinct_kinds(shape) if kind.feed_forward == "dense"}
    widths = {"ffnHiddenSize": math.gcd(*dense)}
    widths["moeSharedExpertIntermediateSize"] = shape.shared_ffn
    if shape.mamba is not None:
        widths |= {"mambaNumGroups": shape.mamba.groups, "mambaNumHeads": shape.mamba.heads}
    if shape.delta is not None:
        widths |= {"linearNumKeyHeads": shape.delta.key_heads}
    for name, width in widths.items():
        if width % tp:
            found.error(field, f"{tp} does not divide {name} {width}", f"set a divisor of {width}")
    if (rank := context.split_rank) % tp:
        multiple = f"spec.peft.dim to a multiple of {tp}"
        found.error(field, f"{tp} does not divide peft.dim {rank}", f"set a divisor of {rank}, or {multiple}")


def _check_towers(layout: Layout, context: ConstraintContext, found: Diagnostics) -> None:
    """TP divides towers that it splits, and the first stage has all layers that get features of a tower."""
    dims = layout.dims
    for tower in context.shape.towers:
        heads = math.gcd(tower.heads, tower.groups)
        if tower.split and heads % dims.tp:
            what = "attention heads" if tower.groups == tower.heads else "heads of keys and values"
            found.error(
                f"{_P}tensorModelParallelSize",
                f"{dims.tp} does not divide the {heads} {what} of the vision tower",
                f"set a divisor of {heads}",
            )
        _check_deepstack(tower, layout, found)


def _check_deepstack(tower: Tower, layout: Layout, found: Diagnostics) -> None:
    dims = layout.dims
    if layout.split and layout.split.layers[0] < tower.deepstack:
        found.error(
            f"{_P}pipelineModelParallelSize",
            f"PP {dims.pp} leaves {layout.split.layers[0]} layers on the first stage, and features of the "
            f"vision tower go into the first {tower.deepstack}",
            f"set a smaller PP, or decoderFirstPipelineNumLayers of at least {tower.deepstack}",
        )


def stages_error(layout: Layout, shape: ModelShape) -> FieldError:
    """Why the layers cannot be split over the layout's pipeline stages."""
    field, pp = f"{_P}pipelineModelParallelSize", layout.dims.pp
    if pp > shape.layers:
        return FieldError(field, f"PP {pp} is above numLayers {shape.layers}", f"set at most {shape.layers}")
    return FieldError(
        field,
        f"numLayers {shape.layers} is not divisible by PP {pp}",
        f"{set_one_of(divisors(shape.layers))}, or set the split with decoderFirst/LastPipelineNumLayers, "
        "accountForEmbedding/LossInPipelineSplit or pipelineModelParallelLayout",
    )


def _check_compressed_attention(layout: Layout, context: ConstraintContext, found: Diagnostics) -> None:
    """DeepSeek-V4's attention is not split over TP (`DSv4HybridAttention`), and over CP for packed sequences
    alone. Its first layers choose experts by token ids, which the first stage alone has."""
    dims, split = layout.dims, layout.split
    if not any(isinstance(kind.attention, Compressed) for kind in distinct_kinds(context.shape)):
        return
    for name, size in (("tensorModelParallelSize", dims.tp), ("contextParallelSize", dims.cp)):
        if size > 1:
            found.error(f"{_P}{name}", f"{size} splits attention with csaCompressRatios", "set 1")
    if split is not None and split.chunks[0] < _HASH_LAYERS:
        found.error(
            f"{_P}{_field_of_split(split)}",
            f"the first stage has {split.chunks[0]} of the {_HASH_LAYERS} layers that choose experts by"
            " token ids",
            "set fewer stages, or more layers for the first one",
        )


def _check_shared_selection(layout: Layout, shape: ModelShape, found: Diagnostics) -> None:
    """Each chunk begins with a layer that has an indexer (`_validate_dsa_index_share_pipeline_split`)."""
    split = layout.split
    if split is None or not shares_selection(shape):
        return
    begin, starts = 0, selecting_layers(shape)
    for count in split.chunks:
        if count and begin not in starts:
            numbers = ", ".join(str(n + 1) for n in starts)
            found.error(
                f"{_P}{_field_of_split(split)}",
                f"a stage begins with layer {begin + 1}, which attends to keys of an earlier selection",
                f"leave the split to the planner, or begin stages with layers {numbers}",
            )
            return
        begin += count


def _field_of_split(split: StageSplit) -> str:
    """The field that a split follows from."""
    if split.layout is not None:
        return "pipelineModelParallelLayout"
    if split.first is not None:
        return "decoderFirstPipelineNumLayers"
    return "pipelineModelParallelSize" if split.last is None else "decoderLastPipelineNumLayers"


def _check_sequence(dims: ParallelDims, context: ConstraintContext, found: Diagnostics) -> None:
    """CP and sequence parallelism divide the sequence."""
    tp, cp, seq = dims.tp, dims.cp, context.seq_length
    if cp > 1:
        _check_context(dims, context, found)
    if context.sequence_parallel and tp > 1 and seq % (cp * tp):
        found.error(
            f"{_P}tensorModelParallelSize",
            f"sequence parallelism splits seqLength {seq} over CP {cp} x TP {tp} = {cp * tp} ranks",
            f"set a seqLength that is a multiple of {cp * tp}",
        )


def _check_context(dims: ParallelDims, context: ConstraintContext, found: Diagnostics) -> None:
    """What attention requires of context parallelism."""
    shape, cp, tp, seq = context.shape, dims.cp, dims.tp, context.seq_length
    field = f"{_P}contextParallelSize"
    if context.local_layers and not context.splits_itself:
        found.error(
            field, f"CP {cp} requires Transformer Engine, but transformerImpl is local", "leave it out"
        )
    elif context.unfused_attention:
        found.error(
            field,
            f"CP {cp} requires a fused kernel of attention, but attentionBackend is unfused",
            "leave it out, or set attentionBackend to fused or auto",
        )
    elif context.in_fp32:
        message = f"CP {cp} requires a fused kernel of attention, which there is not for FP32 (bf16 false)"
        found.error(field, message, "leave it out, or set training.bf16: true")
    if seq % (2 * cp):
        found.error(
            field,
            f"seqLength {seq} is not divisible by 2 x CP {cp} = {2 * cp}",
            f"set a CP of which twice divides {seq}",
        )
    heads = {"mambaNumHeads": shape.mamba.heads} if shape.mamba else {}
    heads |= {"linearNumKeyHeads": shape.delta.key_heads} if shape.delta else {}
    for name, count in heads.items():
        if count % (tp * cp):
            found.error(field, f"TP {tp} x CP {cp} does not divide {name} {count}", "set a smaller CP")
    kind, levels = context.cp_comm_type, context.cp_levels
    check_exchange(shape, dims, kind, levels, found, world=context.world, seq_length=seq)


def _check_experts(dims: ParallelDims, context: ConstraintContext, found: Diagnostics) -> None:
    """EP and ETP suit the experts; without experts, EP is 1 and ETP is TP, as in Megatron."""
    shape, ep, etp, world = context.shape, dims.ep, dims.etp, context.world
    field, etp_field = f"{_P}expertModelParallelSize", f"{_P}expertTensorParallelSize"
    if not shape.experts:
        if ep > 1:
            found.error(field, f"EP {ep}, but the model has no experts", "leave it out")
        if etp != dims.tp:
            found.error(etp_field, f"ETP {etp}, but the model has no experts", "leave it out")
        return
    if shape.experts % ep:
        found.error(
            field,
            f"EP {ep} does not divide numExperts {shape.experts}",
            set_one_of([size for size in divisors(shape.experts) if world % size == 0]),
        )
    if world % dims.expert_model_parallel:
        found.error(
            field,
            f"ETP {etp} x EP {ep} x PP {dims.pp} = {dims.expert_model_parallel} does not divide "
            f"accelerator.count {world}",
            f"set sizes whose product divides {world}"
            + (", or expertTensorParallelSize 1" if etp > 1 else ""),
        )
    if shape.expert_ffn % etp:
        found.error(etp_field, f"ETP {etp} does not divide moeFfnHiddenSize {shape.expert_ffn}", "set 1")
    if etp > 1 and shape.bias:
        found.error(
            etp_field,
            f"ETP {etp}, but Megatron supports biased experts at ETP 1 only",
            "set 1, or model.disableBiasLinear true",
        )
    if dims.tp > 1 and not context.sequence_parallel:
        found.error(
            f"{_P}tensorModelParallelSize",
            f"TP {dims.tp} with experts requires sequence parallelism, which is off here",
            "set 1, or sequenceParallel true" if context.has_sequence_parallelism else "set 1",
        )

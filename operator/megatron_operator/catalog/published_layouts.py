"""Selects a published layout for a recipe: only if the recipe keeps everything that the layout depends on."""

import math
from collections.abc import Collection
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.parallel_dims import ParallelDims
from megatron_operator.api.platform import ImagePackage
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.training import ParallelismSpec
from megatron_operator.catalog import schedule
from megatron_operator.catalog.entry import Entry, PublishedLayout
from megatron_operator.catalog.merge import Settings, merge_layers

_LAYOUT_DEPENDS_ON: Final = {
    "model": frozenset(
        {
            "numLayers",
            "hiddenSize",
            "ffnHiddenSize",
            "numAttentionHeads",
            "numQueryGroups",
            "kvChannels",
            "swiglu",
            "numExperts",
            "moeLayerFreq",
            "moeFfnHiddenSize",
            "moeSharedExpertIntermediateSize",
            "moeRouterTopk",
            "multiLatentAttention",
            "mtpNumLayers",
        }
    ),
    "training": frozenset({"seqLength", "bf16", "fp16", "fp8Format", "fp4Format", "optimizer"}),
    "parallelism": frozenset(
        {
            "tensorModelParallelSize",
            "pipelineModelParallelSize",
            "numVirtualStagesPerPipelineRank",
            "contextParallelSize",
            "expertModelParallelSize",
            "expertTensorParallelSize",
            "decoderFirstPipelineNumLayers",
            "decoderLastPipelineNumLayers",
            "accountForEmbeddingInPipelineSplit",
            "accountForLossInPipelineSplit",
            "pipelineModelParallelLayout",
            "useMegatronFsdp",
        }
    ),
}
"""Settings that a layout depends on: it does not apply if a recipe changes one of them."""

FP4_ESTIMATE: Final = "NVFP4 is estimated at the speed of FP8"
"""Note of a run with FP4 matrix products."""
_OF_16_BITS: Final = ("bf16", "fp16")

_STAGE_SPLIT: Final = (
    "accountForEmbeddingInPipelineSplit",
    "accountForLossInPipelineSplit",
    "decoderFirstPipelineNumLayers",
    "decoderLastPipelineNumLayers",
    "pipelineModelParallelLayout",
)


_OF_A_LAYOUT: Final = (
    *("microBatchSize", "globalBatchSize", "fp8ParamGather", "fp4Format", "fp4ParamGather"),
    "usePrecisionAwareOptimizer",
)
"""Settings of `training` that belong to a function's layout."""


def select_layout(
    entry: Entry,
    hardware: str,
    spec: MegatronRecipeSpec,
    found: Diagnostics,
    function: PublishedLayout | None = None,
    packages: Collection[ImagePackage] = (),
) -> PublishedLayout | None:
    """The entry's layout for this hardware and count, unless the recipe changes what it depends on.

    If the recipe names a `function`, only its layout is considered. `packages` are those of the image. A note
    gives the reason for none.
    """
    count = spec.accelerator.count
    if function is not None and (hardware not in function.accelerators or count != function.count):
        found.note(f"{function.function} is for {function.title}, not for {count} x {hardware}")
        return None
    fp8 = True if spec.training is not None and spec.training.fp8_format is not None else None
    fp4 = spec.training is not None and spec.training.fp4_format is not None
    layout = function or entry.layout_for(hardware, count, fp8=fp8, fp4=fp4)
    if layout is None:
        published = "; ".join(dict.fromkeys(each.title for each in entry.usable_layouts)) or "none"
        found.note(
            f"{entry.name} has no published layout for {count} x {hardware} (published: {published}): planned"
        )
        return None
    reason = (
        _split_samples(entry, layout)
        or _changed_setting(entry, layout, spec)
        or _indivisible(entry, layout, spec)
    )
    if reason is not None:
        found.note(f"the published layout for {count} x {hardware} is not used: {reason}; planned")
        return None
    for note in layout_notes(layout, count, hardware):
        found.note(note)
    asked = spec.model.moe_token_dispatcher_type if spec.model else None
    if asked in (None, "flex"):
        layout = layout.with_image(packages)
    for what in layout.left_out or ():
        if entry.engine == "megatron":
            found.note(f"left out of {layout.function}: {what.setting}, {what.reason}")
        elif what.needs is None:
            found.note(f"not considered in the estimate of {layout.function}: {what.setting}")
    return layout


def layout_notes(layout: PublishedLayout, count: int, hardware: str) -> list[str]:
    """What is true only where this layout is used."""
    used = f"the published layout for {count} x {hardware} is used ({layout.source})"
    if hardware == "h200" and "h100-sxm" in layout.accelerators:
        used = f"the layout published for {count} x h100-sxm is used on {hardware} too ({layout.source})"
    return [used, FP4_ESTIMATE] if layout.precision == "nvfp4" else [used]


def layout_settings(layout: PublishedLayout) -> Settings:
    """Settings that a layout adds below a recipe; of a function only those that make up its layout."""
    wire = layout.wire()
    if layout.function is None:
        return wire
    # The entry's stage split is for its own layouts.
    sizes: dict[str, object] = dict.fromkeys(_STAGE_SPLIT) | layout.parallelism.wire()
    training = layout.training.wire()
    if layout.parallelism.pipeline_model_parallel_size in (None, 1):
        sizes |= dict.fromkeys(_STAGE_SPLIT)  # some functions set a split for one stage
    if sizes["pipelineModelParallelLayout"]:
        # The layout string implies the virtual stages; Megatron rejects both together.
        sizes.pop("numVirtualStagesPerPipelineRank", None)
    kept = {leaf: training[leaf] for leaf in _OF_A_LAYOUT if leaf in training}
    fast = {section: wire[section] for section in ("model", "megatronArgs") if wire.get(section)}
    return {"parallelism": sizes, "training": kept} | fast


def _split_samples(entry: Entry, layout: PublishedLayout) -> str | None:
    """That a function which is started at CP 1 has another; none if it has not."""
    cp = layout.parallelism.context_parallel_size or 1
    if cp == 1 or layout.splits_sequences or entry.engine == "megatron" or not entry.can_start(layout):
        return None
    return f"samples are not split over its CP {cp}"


def _changed_setting(entry: Entry, layout: PublishedLayout, spec: MegatronRecipeSpec) -> str | None:
    layers = [("", entry.wire()), ("", layout.wire())]
    (published, _), (merged, _) = merge_layers(layers), merge_layers([*layers, ("", spec.wire())])
    asked: dict[str, Any] = spec.wire()
    cp = merged["parallelism"].get("contextParallelSize") or 1
    if entry.engine == "bridge" and cp > 1 and merged["data"].get("packing"):
        return f"data.packing is true, and packed samples are not split over its CP {cp}"
    alike = _in_16_bits(published["training"]) == _in_16_bits(merged["training"])
    for section, leaves in _LAYOUT_DEPENDS_ON.items():
        own = asked.get(section) or {}
        for leaf in sorted(leaves & own.keys()):
            before, after = published[section].get(leaf), merged[section].get(leaf)
            # BF16 and FP16 take the same memory and time.
            same = alike if leaf in _OF_16_BITS else after == before
            # A size of 1 has no effect where none was set.
            unsplit = section == "parallelism" and after == 1 and after is not True
            if not same and not (before is None and (after is False or unsplit)):
                return f"{section}.{leaf} is {own[leaf]}" + (f", not {before}" if before is not None else "")
    return None


def _in_16_bits(training: Settings) -> bool:
    return any(training.get(leaf) for leaf in _OF_16_BITS)


def _indivisible(entry: Entry, layout: PublishedLayout, spec: MegatronRecipeSpec) -> str | None:
    """Why the layout cannot be used with the recipe's batch; none if it can."""
    merged, _ = merge_layers([("", entry.wire()), ("", layout.wire()), ("", spec.wire())])
    sizes, training = merged["parallelism"], merged["training"]
    dims = ParallelDims.of_spec(ParallelismSpec.model_validate(sizes), layout.count)
    if layout.count % dims.model_parallel or layout.count % dims.expert_model_parallel:
        attention = f"TP {dims.tp} x PP {dims.pp} x CP {dims.cp}"
        return f"{attention} and EP {dims.ep} x PP {dims.pp} do not divide {layout.count}"
    heads = merged["model"].get("numAttentionHeads") or 1
    groups = merged["model"].get("numQueryGroups") or heads
    if dims.cp > 1 and sizes.get("cpCommType") == "a2a" and math.gcd(heads, groups) % (dims.tp * dims.cp):
        return f"parallelism.cpCommType a2a splits {groups} groups of heads over TP {dims.tp} x CP {dims.cp}"
    samples = training.get("microBatchSize", 1) * dims.dp
    uneven = [batch for batch in schedule.batches(training) if samples and batch % samples]
    if not uneven:
        return None
    batch = f"globalBatchSize {uneven[0]}"
    if training.get("stepBatchSizeSchedule"):
        batch = f"batch {uneven[0]} of stepBatchSizeSchedule"
    return f"{batch} is not a multiple of microBatchSize x DP = {samples}"

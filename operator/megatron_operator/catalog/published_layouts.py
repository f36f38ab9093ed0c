"""Whether a published layout holds for a recipe: only where nothing that it was made for is changed."""

from typing import Final

from megatron_operator.api.recipe import MegatronRecipeSpec
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
    "training": frozenset({"seqLength", "bf16", "fp16", "fp8Format", "optimizer"}),
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
        }
    ),
}
"""Settings that a layout is made for. With another value of one of them it says nothing any more."""


_STAGE_SPLIT: Final = (
    "accountForEmbeddingInPipelineSplit",
    "accountForLossInPipelineSplit",
    "decoderFirstPipelineNumLayers",
    "decoderLastPipelineNumLayers",
    "pipelineModelParallelLayout",
)


def select_layout(
    entry: Entry,
    hardware: str,
    spec: MegatronRecipeSpec,
    notes: list[str],
    function: PublishedLayout | None = None,
) -> PublishedLayout | None:
    """The entry's layout for this hardware and count, unless the recipe changes what it was made for.

    With a `function` that the recipe names, only that one's will do. Says in `notes` why there is none.
    """
    count = spec.accelerator.count
    if function is not None and (hardware not in function.accelerators or count != function.count):
        notes.append(f"{function.function} is for {function.title}, not for {count} x {hardware}")
        return None
    fp8 = True if spec.training is not None and spec.training.fp8_format is not None else None
    layout = function or entry.layout_for(hardware, count, fp8=fp8)
    if layout is None:
        there = "; ".join(dict.fromkeys(each.title for each in entry.layouts)) or "none"
        notes.append(
            f"{entry.name} has no published layout for {count} x {hardware} (published: {there}): planned"
        )
        return None
    reason = _changed_setting(entry, layout, spec) or _indivisible(entry, layout, spec)
    if reason is not None:
        notes.append(f"the published layout for {count} x {hardware} is not used: {reason}; planned")
        return None
    notes.append(f"the published layout for {count} x {hardware} is used ({layout.source})")
    return layout


def layout_settings(layout: PublishedLayout) -> Settings:
    """What a layout lays over a recipe; of a function's settings only those that make it a layout."""
    wire = layout.wire()
    if layout.function is None:
        return wire
    # How the entry deals its layers holds for its own layouts.
    sizes: dict[str, object] = dict.fromkeys(_STAGE_SPLIT) | layout.parallelism.wire()
    training = layout.training.wire()
    if layout.parallelism.pipeline_model_parallel_size in (None, 1):
        sizes |= dict.fromkeys(_STAGE_SPLIT)  # some functions say how to deal the layers of one stage
    if sizes["pipelineModelParallelLayout"]:
        # The stages of the list say the virtual ones by themselves; Megatron wants not both.
        sizes.pop("numVirtualStagesPerPipelineRank", None)
    kept = {leaf: training[leaf] for leaf in ("microBatchSize", "globalBatchSize") if leaf in training}
    return {"parallelism": sizes, "training": kept}


def _changed_setting(entry: Entry, layout: PublishedLayout, spec: MegatronRecipeSpec) -> str | None:
    published, _ = merge_layers([("", entry.wire()), ("", layout.wire())])
    asked, _ = merge_layers([("", spec.wire())])
    for section, leaves in _LAYOUT_DEPENDS_ON.items():
        for leaf in sorted(leaves & asked[section].keys()):
            before, after = published[section].get(leaf), asked[section][leaf]
            if after != before and not (before is None and after in (False, 1)):
                return f"{section}.{leaf} is {after}, not {before}"
    return None


def _indivisible(entry: Entry, layout: PublishedLayout, spec: MegatronRecipeSpec) -> str | None:
    merged, _ = merge_layers([("", entry.wire()), ("", layout.wire()), ("", spec.wire())])
    sizes, training = merged["parallelism"], merged["training"]
    tp, pp, cp, ep = (
        sizes.get(f"{kind}Size", 1)
        for kind in (
            "tensorModelParallel",
            "pipelineModelParallel",
            "contextParallel",
            "expertModelParallel",
        )
    )
    if layout.count % (tp * pp * cp) or layout.count % (pp * ep * sizes.get("expertTensorParallelSize", 1)):
        return f"TP {tp} x PP {pp} x CP {cp} and EP {ep} x PP {pp} do not divide {layout.count}"
    samples = training.get("microBatchSize", 1) * (layout.count // (tp * pp * cp))
    batch = schedule.largest_batch(training)
    if batch is None or samples == 0 or batch % samples == 0:
        return None
    return f"globalBatchSize {batch} is no multiple of microBatchSize x DP = {samples}"

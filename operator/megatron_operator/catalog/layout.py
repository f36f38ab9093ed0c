"""Whether a published layout holds for a recipe: only where nothing that it was made for is changed."""

from typing import Final

from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import schedule
from megatron_operator.catalog.entry import Entry, Layout
from megatron_operator.catalog.overlay import fold

_DECIDING: Final = {
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


def fitting_layout(entry: Entry, hardware: str, spec: MegatronRecipeSpec, notes: list[str]) -> Layout | None:
    """The entry's layout for this hardware and count, unless the recipe changes what it was made for.

    Says in `notes` why there is none.
    """
    count = spec.accelerator.count
    layout = entry.layout_for(hardware, count)
    if layout is None:
        there = "; ".join(each.title for each in entry.layouts) or "none"
        notes.append(
            f"{entry.name} has no published layout for {count} x {hardware} (published: {there}): planned"
        )
        return None
    reason = _changed(entry, layout, spec) or _indivisible(entry, layout, spec)
    if reason is not None:
        notes.append(f"the published layout for {count} x {hardware} is not used: {reason}; planned")
        return None
    notes.append(f"the published layout for {count} x {hardware} is used ({layout.source})")
    return layout


def _changed(entry: Entry, layout: Layout, spec: MegatronRecipeSpec) -> str | None:
    published, _ = fold([("", entry.wire()), ("", layout.wire())])
    asked, _ = fold([("", spec.wire())])
    for section, leaves in _DECIDING.items():
        for leaf in sorted(leaves & asked[section].keys()):
            before, after = published[section].get(leaf), asked[section][leaf]
            if after != before and not (before is None and after in (False, 1)):
                return f"{section}.{leaf} is {after}, not {before}"
    return None


def _indivisible(entry: Entry, layout: Layout, spec: MegatronRecipeSpec) -> str | None:
    merged, _ = fold([("", entry.wire()), ("", layout.wire()), ("", spec.wire())])
    sizes, training = merged["parallelism"], merged["training"]
    model_parallel = 1
    for leaf in ("tensorModelParallelSize", "pipelineModelParallelSize", "contextParallelSize"):
        model_parallel *= sizes.get(leaf, 1)
    samples = training.get("microBatchSize", 1) * (layout.count // model_parallel)
    batch = schedule.largest_batch(training)
    if batch is None or samples == 0 or batch % samples == 0:
        return None
    return f"globalBatchSize {batch} is no multiple of microBatchSize x DP = {samples}"

"""Whether a published layout is kept as far as its memory is concerned."""

from typing import Final

from megatron_operator.catalog.resolved import ResolvedRecipe

_SIZES: Final = (
    "tensorModelParallelSize",
    "pipelineModelParallelSize",
    "contextParallelSize",
    "expertModelParallelSize",
    "expertTensorParallelSize",
    "recomputeGranularity",
    "recomputeMethod",
    "recomputeNumLayers",
    "recomputeModules",
    "useDistributedOptimizer",
    "useMegatronFsdp",
)
"""Fields of `spec.parallelism` that memory depends on."""


def keeps_published_memory(resolved: ResolvedRecipe) -> bool:
    """Whether the layout is published for these accelerators, and no setting of the recipe itself needs more.

    What was published has run, however large its estimate is; what a recipe makes of it need not.
    """
    layout, set_by_recipe = resolved.layout, [p for p, of in resolved.origins.items() if of == "recipe"]
    if layout is None or any(path.startswith("model.") for path in set_by_recipe):
        return False
    sizes, published_sizes = resolved.parallelism.wire(), layout.parallelism.wire()
    for leaf in _SIZES:
        if f"parallelism.{leaf}" in set_by_recipe and sizes.get(leaf) != published_sizes.get(leaf):
            return False
    training = resolved.training
    # With these activations grow.
    amounts = {
        "microBatchSize": (training.micro_batch_size, layout.training.micro_batch_size),
        "seqLength": (training.seq_length, layout.training.seq_length),
    }
    return all(
        f"training.{leaf}" not in set_by_recipe or (own or 1) <= (published or 0)
        for leaf, (own, published) in amounts.items()
    )

"""Which communication of data-parallel ranks overlaps computation."""

from megatron_operator.catalog.resolved import ResolvedRecipe


def overlaps(resolved: ResolvedRecipe) -> tuple[bool, bool]:
    """Whether gradient reduction and parameter gathering overlap computation: on GPUs, unless set otherwise.

    On a CPU, where nothing overlaps, only the recipe itself switches them on.
    """
    p, on_gpu = resolved.parallelism, resolved.profile.platform == "gpu"
    reduce, gather = p.overlap_grad_reduce, p.overlap_param_gather
    if ignores_overlaps(resolved):
        reduce = gather = None
    reduce = on_gpu if reduce is None else reduce
    if gather is None:
        gather = reduce and on_gpu and p.use_distributed_optimizer is not False
    return reduce, gather


def ignores_overlaps(resolved: ResolvedRecipe) -> bool:
    """Whether the overlaps are off because the run is on a CPU."""
    is_own = resolved.origins.get("parallelism.overlapGradReduce") == "recipe"
    return resolved.profile.platform != "gpu" and not is_own

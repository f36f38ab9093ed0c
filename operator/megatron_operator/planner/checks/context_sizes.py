"""Levels of context parallelism: `hierarchical-context-parallel-sizes` of `megatronArgs`."""

import math
from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe

CONTEXT_SIZES: Final = "hierarchical-context-parallel-sizes"


def context_sizes(resolved: ResolvedRecipe) -> tuple[int, ...]:
    """Ranks of each level, the innermost first; empty where they are not set."""
    sizes = resolved.megatron_args.get(CONTEXT_SIZES)
    if not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        return ()
    return tuple(map(int, sizes))


def context_ranks(resolved: ResolvedRecipe) -> int | None:
    """Ranks of all levels together; None where they are not set."""
    return math.prod(sizes) if (sizes := context_sizes(resolved)) else None


def context_size_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Sizes that the recipe's context parallelism contradicts."""
    ranks, size = context_ranks(resolved), resolved.parallelism.context_parallel_size
    if ranks is not None and size is not None and ranks != size:
        sizes = resolved.megatron_args[CONTEXT_SIZES]
        message = f"{sizes} are {ranks} ranks, and parallelism.contextParallelSize is {size}"
        yield FieldError(
            f"spec.megatronArgs.{CONTEXT_SIZES}", message, f"set parallelism.contextParallelSize: {ranks}"
        )


def level_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """What is missing for an exchange on two levels."""
    if resolved.parallelism.cp_comm_type == "a2a+p2p" and len(context_sizes(resolved)) != 2:
        yield FieldError(
            "spec.parallelism.cpCommType",
            "a2a+p2p splits context-parallel ranks into two levels and needs the size of each",
            f"set megatronArgs.{CONTEXT_SIZES}, two sizes whose product is contextParallelSize",
        )

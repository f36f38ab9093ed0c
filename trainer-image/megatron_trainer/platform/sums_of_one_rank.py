"""Sums over a tensor-parallel group of one rank, on the CPU.

Megatron Core 0.19.2 returns what it was given. To autograd that is a view, which must not be changed in
place. Megatron's local experts with a bias do so (GPT-OSS): the first iteration ended in an error.
"""

from typing import Any


def install() -> None:
    """Have the sum of one rank be a tensor of its own."""
    from megatron.core.tensor_parallel import mappings

    region = mappings._ReduceFromModelParallelRegion
    inner = region.forward

    def forward(ctx: Any, given: Any, group: Any) -> Any:
        return given.clone() if group.size() == 1 else inner(ctx, given, group)

    region.forward = staticmethod(forward)

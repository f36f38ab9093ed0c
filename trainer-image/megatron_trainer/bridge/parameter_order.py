"""Has Megatron save the optimizer's states of parameters in FP32 beside others in BF16 under their own names.

Megatron Core 0.19.2 gives its optimizer those of a group in FP32 first, and counts them in the order of its
buffers. Where these begin with BF16, as on the later pipeline stages of MiniMax-M3, whose routers are in
FP32, a checkpoint would have the states of other parameters: it fails if they have other sizes.
"""

from typing import Any

import torch


def install() -> None:
    """Call it once in a process that trains, after Megatron is imported."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer: Any = DistributedOptimizer
    inner = optimizer._build_optimizer_group_ranges

    def ordered(*args: Any, **kwargs: Any) -> Any:
        places, groups = inner(*args, **kwargs)
        for index, group in enumerate(groups):
            group["params"].sort(key=lambda parameter: parameter.dtype != torch.float32)
            places |= {parameter: (index, place) for place, parameter in enumerate(group["params"])}
        return places, groups

    optimizer._build_optimizer_group_ranges = staticmethod(ordered)

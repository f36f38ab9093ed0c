"""Has Megatron count the elements of the optimizer's buckets without the padding behind them.

Megatron Core 0.19.2 counts the padding in front of an embedding that pipeline stages share to the bucket
before it. Where that bucket ends with a parameter of an odd size, as the heads of a gated delta net have, a
checkpoint of the distributed optimizer fails ("Failed to validate global plan"): Qwen3-Next with multi-token
prediction at PP 2.
"""

import dataclasses
from typing import Any


def install() -> None:
    """Call it once in a process that trains, after Megatron is imported."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer: Any = DistributedOptimizer
    inner = optimizer._compute_per_buffer_param_layout

    def counted(*args: Any, **kwargs: Any) -> Any:
        layout = inner(*args, **kwargs)
        ends: dict[int, int] = {}
        for _, end, bucket in layout.param_index_map.values():
            ends[bucket] = max(end, ends.get(bucket, 0))
        sizes = [
            # What equals the padded size could be saved, and a checkpoint with another count is not loaded.
            counted if counted == end - start else ends[bucket] - start
            for bucket, ((start, end), counted) in enumerate(
                zip(layout.bucket_indices, layout.per_bucket_numel_unpadded, strict=True)
            )
        ]
        return dataclasses.replace(layout, per_bucket_numel_unpadded=sizes)

    optimizer._compute_per_buffer_param_layout = staticmethod(counted)

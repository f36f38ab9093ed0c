"""Saves the optimizer's state of each parameter where its buffer has several buckets.

With `--dist-ckpt-optim-fully-reshardable` Megatron Core 0.19.2 gathers the buckets of a buffer without the
padding at their ends, and reads the state of a parameter from its place in the buffer, which counts it:
behind the first padded bucket it saves the state of other elements, and warns of "data corruption"
(sharded_param_state_fully_reshardable). A tied embedding has a bucket of its own in the stages that share it.
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch

_SIZE = "numel_unpadded"


def install() -> None:
    """Have every save in that form gather the padding as well; call it once."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer: Any = DistributedOptimizer
    inner = optimizer.sharded_param_state_fully_reshardable
    gather = optimizer.get_parameter_state_dp_zero

    @functools.wraps(inner)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        def gathered(**options: Any) -> Any:
            return _with_padding(gather(self, **options), self.buffers)

        self.get_parameter_state_dp_zero = gathered
        try:
            return inner(self, *args, **kwargs)
        finally:
            del self.get_parameter_state_dp_zero

    optimizer.sharded_param_state_fully_reshardable = save


def _with_padding(state: Any, buffers: Any) -> Any:
    """The gathered state, None on ranks that do not gather."""
    for number, buffer in enumerate(buffers if state is not None else ()):
        for tensors in state[number].values():
            for key in tensors.keys() - {_SIZE}:
                tensors[key] = padded(tensors[key], buffer.buckets, buffer.param_index_map)
    return state


def padded(values: torch.Tensor, buckets: Any, places: Mapping[Any, Any]) -> torch.Tensor:
    """Return values [elements of the buffer], from `values` [elements without the padding of buckets].

    `places` has the first and the last element, exclusive, of each parameter of the buffer.
    """
    elements = max(end for _, end, *_ in places.values())
    if len(values) == elements:
        # Without padding nothing is elsewhere: no copy of all states.
        return values
    result = values.new_zeros(elements)
    read = 0
    for bucket in buckets:
        size = bucket.numel_unpadded
        start = min(places[parameter][0] for parameter in bucket.params)
        result[start : start + size] = values[read : read + size]
        read += size
    return result

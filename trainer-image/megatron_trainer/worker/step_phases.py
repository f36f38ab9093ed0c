"""Measures how long a step of this rank stood still in collectives, waiting for other ranks.

In a synchronous gang all steps take equally long: a slow rank is one that waits less than its peers. On a GPU
two events around each collective on the stream of the step measure the wait of that stream. Those on other
streams overlap with computing: neither they nor what the stream waits for them later is measured.
The cpu platform's events are clocks.

Megatron's own StragglerDetector measures the forward pass with the waits in it, and its timers of log level 2
synchronize the device at each start and stop.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ProcessGroup, Work

SAMPLE_EVERY = 4
"""One iteration in so many is measured: two events for each of thousands of collectives are not free."""

# Without `asyncOp` NCCL runs a collective on the current stream. Else, and with gloo, `Work.wait` waits.
COLLECTIVES = (
    "_allgather_base",
    "_end_coalescing",
    "_reduce_scatter_base",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""Methods of a process group."""


class StepPhases:
    """The waits of one step in this process. `install` once; then `begin` and `end` around a step."""

    def __init__(self) -> None:
        self._measuring = False
        self._stream: int | None = None
        self._spans: list[tuple[Any, Any]] = []
        self._free: list[Any] = []

    def install(self) -> None:
        """Wrap the collectives of torch's process groups, which Megatron imports under several names."""
        for name in COLLECTIVES:
            setattr(ProcessGroup, name, self._measured(getattr(ProcessGroup, name)))
        Work.wait = self._measured(Work.wait)

    def _measured(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def measured_collective(*args: Any, **kwargs: Any) -> Any:
            if not self._measuring or torch.cuda.is_current_stream_capturing():
                return inner(*args, **kwargs)
            if torch.cuda.current_stream().cuda_stream != self._stream:
                return inner(*args, **kwargs)
            begin, end = self._event(), self._event()
            begin.record()
            result = inner(*args, **kwargs)
            end.record()
            self._spans.append((begin, end))
            return result

        return measured_collective

    def _event(self) -> Any:
        return self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)

    def begin(self, iteration: int) -> None:
        """Start to measure, if `iteration` is one of those that are measured."""
        self._measuring = iteration % SAMPLE_EVERY == 0
        self._stream = torch.cuda.current_stream().cuda_stream

    def end(self) -> float | None:
        """Return the seconds since `begin` in which the device waited for other ranks.

        None if it was not measured. Waits for the device.
        """
        if not self._measuring:
            return None
        self._measuring = False
        torch.cuda.synchronize()
        waited = sum(begin.elapsed_time(end) for begin, end in self._spans) / 1e3
        self._free += [event for span in self._spans for event in span]
        self._spans.clear()
        return float(waited)

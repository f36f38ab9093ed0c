"""The constants of the step-time model that no data sheet gives.

Fitted to the calibration part of `bench/data/published.yaml` by `python -m bench.planner --calibrate`, save
those that say `set`; the error on the other part is in docs/planner.md.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parts of a peak that are reached, parts of communication that stay visible, and times of launching."""

    bf16: float = 0.613
    """Part of the BF16 peak that large matrix products reach on Hopper."""
    fp8: float = 0.512
    """The same of the FP8 peak."""
    ampere: float = 1.36
    """What Ampere reaches of its peaks, against Hopper: chips differ in how far power holds the clock."""
    blackwell: float = 0.994
    blackwell_ultra: float = 1.3
    edge: float = 218.0
    """Elements that each dimension of a matrix product costs beyond its own: tiles and waves half filled."""
    attention: float = 0.672
    """Part of the BF16 peak that fused attention reaches, on any chip."""
    memory: float = 0.8
    """Part of the memory bandwidth that element-wise kernels reach; set."""
    link: float = 0.8
    """Part of the link's bandwidth that collectives reach inside a domain; set."""
    network: float = 0.8
    """Part of the network's bandwidth that collectives reach between domains; set."""
    hidden: float = 0.9
    """Part of a communication that an overlap hides, at most; set."""
    product_seconds: float = 10e-6
    """Start and end of one matrix product: launch, filling and draining the chip; set."""
    step_seconds: float = 67e-3
    """What a step costs beside its kernels: data, the norms' synchronization, logging."""
    layer_seconds: float = 1.5e-3
    """Host time of launching a dense layer's forward and backward pass; set."""
    expert_layer_seconds: float = 7.7e-3
    """The same of a layer with experts: routing, permutation and hundreds of small kernels."""
    expert_wait: float = 0.366
    """Part of that time that computation does not hide: the host waits for the router's counts of tokens
    before it can launch the experts, and the accelerator then waits for the host."""
    fp8_launches: float = 1.3
    """Launches of an FP8 layer, with its casts and scales, against one in BF16; set."""
    graph: float = 0.467
    """Part of that host time that is left with CUDA graphs of parts of a layer; of an iteration: none."""

    def reached(self, architecture: str) -> float:
        """Part of the peaks that an architecture reaches, against Hopper."""
        parts = {"ampere": self.ampere, "blackwell": self.blackwell, "blackwell-ultra": self.blackwell_ultra}
        return parts.get(architecture, 1.0)


FITTED: Final = Calibration()

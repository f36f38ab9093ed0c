"""The constants of the step-time model that no data sheet gives.

Fitted to the calibration part of `bench/data/published.yaml` by `python -m bench.planner --calibrate`, save
those that say `set`; the error on the other part is in docs/planner.md.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parts of a peak that are reached, parts of communication that stay visible, and times of launching."""

    bf16: float = 0.511
    """Part of the BF16 peak that large matrix products reach on Hopper."""
    fp8: float = 0.586
    """The same of the FP8 peak."""
    ampere: float = 1.41
    """What Ampere reaches of its peaks, against Hopper: chips differ in how far power holds the clock."""
    blackwell: float = 0.83
    blackwell_ultra: float = 1.15
    grouped: float = 0.75
    """Experts' grouped products against one product of the same size; set."""
    attention: float = 0.598
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
    step_seconds: float = 40e-3
    """What a step costs beside its kernels: data, the norms' synchronization, logging."""
    layer_seconds: float = 60e-6
    """Host time of a dense layer's forward and backward pass that kernels do not hide; set."""
    expert_layer_seconds: float = 5e-3
    """The same of a layer with experts: routing, permutation and hundreds of small kernels."""
    graph: float = 0.73
    """Part of that host time that is left with CUDA graphs of parts of a layer; of an iteration: none."""

    def reached(self, architecture: str) -> float:
        """Part of the peaks that an architecture reaches, against Hopper."""
        parts = {"ampere": self.ampere, "blackwell": self.blackwell, "blackwell-ultra": self.blackwell_ultra}
        return parts.get(architecture, 1.0)


FITTED: Final = Calibration()

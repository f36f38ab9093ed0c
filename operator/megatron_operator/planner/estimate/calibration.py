"""Constants of the step-time model that data sheets lack.

Fitted to the calibration part of `bench/data/published.yaml` by `python -m bench.planner --calibrate`, except
those marked `set`; the error on the held-out part is in docs/planner.md.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Calibration:
    """Shares of peaks and bandwidths that are reached, overlap, and launch times in seconds."""

    bf16: float = 0.613
    """Share of the BF16 peak that large matrix products reach on Hopper."""
    fp8: float = 0.512
    """Share of the FP8 peak that large matrix products reach on Hopper."""
    ampere: float = 1.36
    """Share of its peaks that Ampere reaches, relative to Hopper: power limits clocks differently."""
    blackwell: float = 0.994
    """Share of its peaks that Blackwell reaches, relative to Hopper."""
    blackwell_ultra: float = 1.3
    """Share of its peaks that Blackwell Ultra reaches, relative to Hopper."""
    edge: float = 218.0
    """Elements added to each dimension of a matrix product for partly filled tiles and waves."""
    attention: float = 0.594
    """Share of the BF16 peak that fused attention reaches, on any chip. Fitted alone, after the others, when
    the calibration part got runs of 32,768 and 131,072 tokens (arXiv:2407.08608 has 648 TFLOP/s forward and
    561 backward on H100: 0.59)."""
    memory: float = 0.8
    """Share of the memory bandwidth that element-wise kernels reach; set."""
    eager: float = 0.278
    """Share of the memory bandwidth of operations that PyTorch runs one by one on parts of tensors."""
    scan: float = 0.3
    """Share of the memory bandwidth of the kernels of Mamba-2 layers and gated delta nets; set, before the
    errors of such runs were seen."""
    link: float = 0.8
    """Share of the link's bandwidth that collectives reach inside a domain; set."""
    network: float = 0.8
    """Share of the network's bandwidth that collectives reach between domains; set."""
    hidden: float = 0.9
    """Largest share of communication that an overlap hides; set."""
    matmul_seconds: float = 10e-6
    """Fixed time of one matrix product: launch, filling and draining the chip; set."""
    step_seconds: float = 67e-3
    """Fixed time of a step: data loading, synchronization of gradient norms, logging."""
    layer_seconds: float = 1.5e-3
    """Host time to launch the forward and backward pass of a dense layer; set."""
    expert_layer_seconds: float = 7.7e-3
    """Host time of a layer with experts: routing, permutation and hundreds of small kernels."""
    expert_wait: float = 0.366
    """Share of that time that computation does not hide: the host waits for the router's token counts
    before it launches the experts, and the accelerator waits for the host."""
    fp8_launches: float = 1.3
    """Launch time of an FP8 layer, with its casts and scales, relative to BF16; set."""
    graph: float = 0.467
    """Share of the host time that remains with CUDA graphs of parts of a layer; none with full graphs."""

    def reached(self, architecture: str) -> float:
        """Share of its peaks that an architecture reaches, relative to Hopper; 1 for any other."""
        parts = {"ampere": self.ampere, "blackwell": self.blackwell, "blackwell-ultra": self.blackwell_ultra}
        return parts.get(architecture, 1.0)


FITTED: Final = Calibration()

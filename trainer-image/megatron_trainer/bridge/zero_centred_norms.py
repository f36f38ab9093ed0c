"""Has Megatron-Bridge export the norm behind a gated delta net without rounding.

Megatron keeps weight - 1, in BF16 with more digits than the weight itself: Bridge 0.6.2 adds 1 in BF16.
"""

from typing import Any


def install() -> None:
    """Call it once in a process that converts, after Bridge is imported."""
    from megatron.bridge.models.conversion.param_mapping import AutoMapping
    from megatron.bridge.models.conversion.param_mapping import RMSNorm2ZeroCenteredRMSNormMapping as Norm

    def in_fp32(self: Any, weights: Any, module: Any) -> dict[str, Any]:
        gathered = AutoMapping.megatron_to_hf(self, weights, module)
        return {name: weight.float() + 1 for name, weight in gathered.items()}

    Norm.megatron_to_hf = in_fp32

"""The kind of accelerator that a run was planned for, by the figures of its plan.

A recipe may leave it to the platform, which the page does not have where the operator discovers accelerators.
"""

from typing import Final

from megatron_operator.api.status import Plan
from megatron_operator.planner.estimate import hardware

_ROUNDED: Final = 0.01
"""Relative error of the peak of a plan, whose figures are rounded."""


def planned_hardware(plan: Plan | None) -> str | None:
    """The planner's name of the accelerator; None where the plan has no figures of one that it knows.

    Those are memory and peak, of which a CPU has none. Of several with the same, which differ in their links
    alone, the first of the table.
    """
    if plan is None or plan.memory_per_gpu is None or (capacity := plan.memory_per_gpu.capacity) is None:
        return None
    peak = None if plan.expected is None else plan.expected.peak_tflops
    for name, each in hardware.table().items():
        if each is None or each.name != name or each.memory != capacity:
            continue
        peaks = [of_precision / 1e12 for of_precision in (each.tf32, each.bf16, each.fp8) if of_precision]
        if peak is None or any(abs(peak / known - 1) <= _ROUNDED for known in peaks):
            return name
    return None

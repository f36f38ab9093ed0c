"""Limits of planning one recipe, and the errors of a recipe that exceeds one.

Most recipes take some hundredths of a second; a large model that leaves all sizes open may take one on a slow
processor. The limits keep one that never ends from harming others.
"""

from dataclasses import dataclass
from typing import Final

from megatron_operator.api.errors import FieldError, PlanningLimitError

_FIX: Final = "set fewer layers, experts or accelerators, or set the parallel sizes"


@dataclass(frozen=True, slots=True)
class PlanningLimits:
    """What planning one recipe may use."""

    cpu_seconds: float = 6.0
    """Processor time; not wall time, so that a busy node does not refuse recipes."""
    memory_bytes: int = 160 * 2**20
    """Private memory of the process that plans."""


def time_limit_error(limits: PlanningLimits) -> PlanningLimitError:
    """The recipe needs more than the allowed processor time."""
    message = f"planning it was stopped after {limits.cpu_seconds:g} s of processor time"
    return PlanningLimitError([FieldError("spec", message, _FIX)])


def memory_limit_error(limits: PlanningLimits) -> PlanningLimitError:
    """The recipe needs more than the allowed memory."""
    message = f"planning it was stopped at {limits.memory_bytes // 2**20} MiB of memory"
    return PlanningLimitError([FieldError("spec", message, _FIX)])

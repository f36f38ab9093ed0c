"""Overlaps of communication that the catalog sets, in a recipe that switches off what they need."""

from collections.abc import Mapping
from typing import Any, Final

from megatron_operator.api.diagnostics import Diagnostics

_NEEDS: Final = (
    ("overlapParamGather", "useDistributedOptimizer"),
    ("overlapParamGather", "overlapGradReduce"),
    ("tpCommOverlap", "sequenceParallel"),
)
"""Overlap, and the setting without which Megatron refuses it."""
DETERMINISTIC: Final = "deterministic-mode"
"""The flag with which Megatron refuses `tpCommOverlap`."""


def switch_off_inherited(parallelism: dict[str, Any], args: Mapping[str, Any], found: Diagnostics) -> None:
    """Set overlaps of the catalog to false, with a note, where the recipe rules them out.

    `args` are the run's `megatronArgs`.
    """
    path = "parallelism.tpCommOverlap"
    if args.get(DETERMINISTIC) and parallelism.get("tpCommOverlap") and not found.is_set_by_user(path):
        parallelism["tpCommOverlap"] = False
        found.origin(path, f"megatronArgs.{DETERMINISTIC}")
        found.note(f"tpCommOverlap of the catalog is off: Megatron refuses it with {DETERMINISTIC}")
    for overlap, need in _NEEDS:
        path = f"parallelism.{overlap}"
        is_off = parallelism.get(need) is False and found.is_set_by_user(f"parallelism.{need}")
        if not is_off or not parallelism.get(overlap) or found.is_set_by_user(path):
            continue
        parallelism[overlap] = False
        found.origin(path, f"parallelism.{need}")
        found.note(f"{overlap} of the catalog is off: it requires {need}, which is false")

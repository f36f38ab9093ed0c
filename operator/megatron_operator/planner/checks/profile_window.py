"""Checks of `profile`: a window that no iteration or rank of the run reaches has no effect."""

from collections.abc import Iterator
from typing import Final

from megatron_operator.api.errors import FieldError
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner import batch

LONGEST: Final = 20
"""Iterations; one of a large model is tens of megabytes, and all ranks wait while the trace is written."""
_MEGATRONS: Final = ("profile", "use-pytorch-profiler")


def profile_errors(resolved: ResolvedRecipe) -> Iterator[FieldError]:
    """Errors of the window; none without one."""
    window = resolved.profile_window
    if window is None:
        return
    iterations, ranks = window.end - window.start + 1, resolved.accelerator_count
    if iterations > LONGEST:
        fix = f"set at most {window.start + LONGEST - 1}"
        yield FieldError("spec.profile.end", f"{window.end}: {iterations} iterations are too many", fix)
    total = batch.iterations(resolved.training)
    if total is not None and window.end > total:
        message = f"{window.end} is above the run's {total} iterations: nothing would be written"
        yield FieldError("spec.profile.end", message, f"set at most {total}")
    for index, rank in enumerate(window.ranks):
        field = f"spec.profile.ranks[{index}]"
        if rank >= ranks:
            yield FieldError(field, f"{rank} is not a rank of {ranks}", f"set at most {ranks - 1}")
        elif rank in window.ranks[:index]:
            yield FieldError(field, f"{rank} is listed twice", "leave it out")
    for flag in _MEGATRONS:
        if resolved.megatron_args.get(flag):
            message = "is set together with spec.profile: a process has one profiler"
            yield FieldError(f"spec.megatronArgs.{flag}", message, "leave one of the two out")

"""The grace period of a pod: what its last checkpoint takes after SIGTERM."""

import math
from typing import Final

from megatron_operator.api.status import Plan
from megatron_operator.catalog.resolved import ResolvedRecipe
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes

SHORTEST: Final = {"gpu": 300, "cpu": 60}
"""Seconds of the shortest default grace period, by platform."""
LONGEST: Final = 3600
"""Seconds of the longest default grace period."""
SHUTDOWN_SECONDS: Final = 10
"""Of the grace period, what the launcher reserves to verify the save and write its termination message."""
_BYTES_PER_SECOND: Final = 1e9
"""What one node is assumed to write to the checkpoint volume; not measured."""
_CURRENT_STEP_SECONDS: Final = 60


def grace_seconds(resolved: ResolvedRecipe, plan: Plan) -> int:
    """Seconds from SIGTERM to SIGKILL: the recipe's, or by the checkpoint's size.

    All nodes write equal parts of a checkpoint. The default is twice the time of a node's part at 1 GB/s, and
    a minute for the step that SIGTERM interrupts; at least 300 s on GPUs, at most an hour.
    """
    if (stated := resolved.recovery.termination_grace_period_seconds) is not None:
        return stated
    shortest = SHORTEST[resolved.profile.platform]
    whole = checkpoint_bytes(resolved, plan)
    if resolved.profile.platform != "gpu" or whole is None:
        return shortest
    needed = _CURRENT_STEP_SECONDS + 2 * whole / plan.nodes / _BYTES_PER_SECOND
    return max(shortest, min(LONGEST, 30 * math.ceil(needed / 30)))

"""How long a run may be silent before which part acts.

The part that knows most acts first: the trainer's watchdog names the rank and restarts processes, the
operator deletes pods, and the time-out of the collectives, which ends every rank without a cause, comes last.
Each limit is derived from the one before it. Durations are in seconds.
"""

import math
from typing import Final

STALL: Final = 60.0
"""A stall that a step must survive: a file system or an object store that fails over."""

WATCHDOG_STEPS: Final = 3
WATCHDOG_MARGIN: Final = STALL + 15.0
LONG_ACTIVITY: Final = 1800.0
"""Limit of loading, of the first steps and of a save. An evaluation reports its batches."""

OPERATOR_STEPS: Final = 30
"""A multiple of the step time that the operator waits if it is longer than the trainer's limit and margin."""
OPERATOR_MARGIN: Final = 30.0
"""What the trainer has, after its own limit, to collect stacks and report that it restarts its ranks."""
COLLECTIVE_MARGIN: Final = 600.0
"""What the operator has, after its own limit, to delete pods before the time-out of the collectives."""


def watchdog_limit(median_step: float) -> float:
    """Limit in seconds of the trainer's watchdog for a training step with `hangTimeout: auto`.

    `median_step` is the median time of recent steps, in seconds.
    """
    return WATCHDOG_STEPS * median_step + WATCHDOG_MARGIN


def operator_step_limit(step: float) -> float:
    """Limit in seconds of the operator without a new iteration, with `hangTimeout: auto`.

    `step` is one step's time in seconds.
    """
    return max(OPERATOR_STEPS * step, watchdog_limit(step) + OPERATOR_MARGIN)


def operator_limit(trainer_limit: float) -> float:
    """Limit of the operator where the trainer's own is known: `hangTimeout`, or LONG_ACTIVITY."""
    return trainer_limit + min(trainer_limit, OPERATOR_MARGIN)


def collective_minutes(hang_timeout: float | None) -> int:
    """`--distributed-timeout-minutes`: beyond every limit of watchdog and operator for this `hangTimeout`.

    `hang_timeout` is None with `auto`.
    """
    longest = max(hang_timeout or 0.0, LONG_ACTIVITY)
    return math.ceil((operator_limit(longest) + COLLECTIVE_MARGIN) / 60)

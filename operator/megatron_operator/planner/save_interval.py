"""How often a run saves, in iterations: what a failure makes it repeat."""

import math
from typing import Final

_SECONDS: Final = 1800.0
"""Time between two checkpoints."""
_STEPS: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 90)
"""Tenths of a power of ten that an interval is rounded down to: each is at least 3/4 of what it is for."""


def save_interval(step_seconds: float, train_iters: int | None) -> int:
    """The iterations between two checkpoints: a round number within half an hour, and above 20 minutes.

    It is 1 where a step takes longer, and the whole run where that is shorter, which then saves at its end.
    """
    interval = _rounded(_SECONDS / step_seconds)
    return interval if train_iters is None else min(interval, train_iters)


def _rounded(value: float) -> int:
    if value < 10:
        return max(1, int(value))
    power = int(10 ** math.floor(math.log10(value)))
    return max(step * power // 10 for step in _STEPS if step * power <= 10 * value)

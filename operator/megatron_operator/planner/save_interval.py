"""How often a run saves, in iterations: what a failure makes it repeat."""

import math

_SECONDS = 1800.0
"""Time between two checkpoints."""


def save_interval(step_seconds: float, train_iters: int | None) -> int:
    """The iterations between two checkpoints: the largest of 1, 2, 5, 10, 20, ... within half an hour.

    It is 1 where a step takes longer, and the whole run where that is shorter, which then saves at its end.
    """
    interval = _rounded(_SECONDS / step_seconds)
    return interval if train_iters is None else min(interval, train_iters)


def _rounded(value: float) -> int:
    power = 10 ** math.floor(math.log10(max(value, 1.0)))
    return int(power * next(step for step in (5, 2, 1) if step * power <= max(value, 1.0)))

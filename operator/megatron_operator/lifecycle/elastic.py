"""On how many accelerators a run can go on."""

from collections.abc import Callable
from dataclasses import dataclass


def fitting(
    capacity: int, *, asked: int, min_count: int, per_node: int, accepts: Callable[[int], bool]
) -> int | None:
    """Largest count of whole nodes within `capacity` and `asked` that `accepts`; None below `min_count`.

    `accepts` is the planner's word, asked from the largest count down: the batch need not divide over every
    count.
    """
    most = min(capacity, asked)
    if per_node >= asked:
        counts = range(asked if capacity >= asked else 0, 0, -asked)
    else:
        counts = range(most // per_node * per_node, 0, -per_node)
    return next((count for count in counts if count >= min_count and accepts(count)), None)


@dataclass(frozen=True, slots=True)
class Larger:
    """More accelerators than the run is laid out on, and since when (seconds since the epoch)."""

    count: int
    since: float


def larger(known: Larger | None, *, count: int, fits: int | None, now: float) -> Larger | None:
    """What could be grown to, look by look: the count that has fitted ever since.

    `fits` that falls, but not to `count`, lowers it and leaves the time; `fits` that rises changes nothing:
    the further accelerators have not been free as long.
    """
    if fits is None or fits <= count:
        return None
    if known is None or known.count <= count:
        return Larger(fits, now)
    return Larger(min(known.count, fits), known.since)

"""On how many accelerators an elastic run can continue."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile


def possible_counts(capacity: int, *, requested: int, min_count: int, per_node: int) -> Iterator[int]:
    """Counts of whole nodes within `capacity` and `requested` and from `min_count`, the largest first.

    The planner accepts some of them: the batch need not be divisible by every count.
    """
    most = min(capacity, requested)
    if per_node >= requested:
        counts = range(requested if capacity >= requested else 0, 0, -requested)
    else:
        counts = range(most // per_node * per_node, 0, -per_node)
    return takewhile(lambda count: count >= min_count, counts)


@dataclass(frozen=True, slots=True)
class LargerCount:
    """More accelerators than the run has, and since when they are free (seconds since the epoch)."""

    count: int
    since: float


def track_larger_count(
    known: LargerCount | None, *, count: int, fits: int | None, now: float
) -> LargerCount | None:
    """The count that the run could grow to, updated at every reconcile.

    When `fits` falls but stays above `count`, the tracked count falls and its time stays. When `fits` rises,
    nothing changes: the additional accelerators have not been free for as long.
    """
    if fits is None or fits <= count:
        return None
    if known is None or known.count <= count:
        return LargerCount(fits, now)
    return LargerCount(min(known.count, fits), known.since)

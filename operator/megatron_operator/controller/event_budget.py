"""How many Events each recipe may post: the Events of all tenants share one etcd."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from megatron_operator.lifecycle.status_builder import RecipeKey

BURST: Final = 25
"""Events that a recipe may post at once."""
RESERVED: Final = 10
"""Of `BURST`, how many only the operator's own reasons may use: what pods report cannot crowd them out."""
SECONDS_PER_EVENT: Final = 30.0
"""After the burst, one Event in so many seconds."""
SUMMARY_EVERY: Final = 600.0
"""Seconds between two Events that report how many were left out."""
_PURGE_ABOVE: Final = 1024


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    dropped: int = 0
    summary_at: float = float("-inf")


class EventBudget:
    """A token bucket for each recipe. A recipe without one has a full one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: dict[RecipeKey, _Bucket] = {}

    def take(self, key: RecipeKey, *, own: bool) -> bool:
        """Whether to post an Event now, which is counted; `own`: its reason is one of the operator's."""
        bucket = self._filled(key)
        if bucket.tokens < (1 if own else 1 + RESERVED):
            bucket.dropped += 1
            return False
        bucket.tokens -= 1
        return True

    def give_back(self, key: RecipeKey) -> None:
        """Count an Event no longer: it was not posted, because it exists already."""
        bucket = self._filled(key)
        bucket.tokens = min(BURST, bucket.tokens + 1)

    def summary(self, key: RecipeKey) -> int:
        """How many Events have been left out since the last summary, when one is to be posted; else 0.

        A summary costs a token as well.
        """
        if key not in self._buckets:
            return 0
        bucket = self._filled(key)
        if not bucket.dropped or bucket.tokens < 1 or bucket.at - bucket.summary_at < SUMMARY_EVERY:
            return 0
        count, bucket.dropped = bucket.dropped, 0
        bucket.tokens -= 1
        bucket.summary_at = bucket.at
        return count

    def _filled(self, key: RecipeKey) -> _Bucket:
        now = self._now()
        bucket = self._buckets.get(key)
        if bucket is None:
            self._purge(now)
            bucket = self._buckets[key] = _Bucket(BURST, now)
        bucket.tokens = _tokens(bucket, now)
        bucket.at = now
        return bucket

    def _purge(self, now: float) -> None:
        """Remove full buckets: recipes that are gone, or post little."""
        if len(self._buckets) >= _PURGE_ABOVE:
            self._buckets = {
                key: bucket
                for key, bucket in self._buckets.items()
                if bucket.dropped or _tokens(bucket, now) < BURST
            }


def _tokens(bucket: _Bucket, now: float) -> float:
    return min(BURST, bucket.tokens + (now - bucket.at) / SECONDS_PER_EVENT)

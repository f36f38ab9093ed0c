"""How many lists wait for an API server that answers slowly."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from megatron_operator.controller.api_client import ApiError, ListsLimitedError

FIRST: Final = 16
"""Lists that may wait at a time once one was not answered."""
LEAST: Final = 2
"""Lists that may always wait at a time."""
_STEP: Final = 0.25
"""By how much the limit grows with each list that is answered."""
_OVERLOADED: Final = frozenset({429, 503, 504})
"""Too many requests, no capacity, and `Too large resource version`: a watch cache that has fallen behind."""


class ListLimit:
    """None until a list is not answered in time; then FIRST, halved each time, and growing with each answer.

    For a list of one run's pods the API server goes through all pods of the namespace, in etcd where its own
    cache has fallen behind. Asked by all reconciles at once, and again after each time-out, an overloaded one
    would not recover.
    """

    def __init__(self) -> None:
        self.limit = math.inf
        """Lists that may wait at a time now."""
        self._waiting = 0
        self._halved = 0
        """How often the limit was halved."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Count one list while it waits. Raises ListsLimitedError, without waiting, where too many do."""
        if self._waiting + 1 > self.limit:
            raise ListsLimitedError(self._waiting)
        halved = self._halved
        self._waiting += 1
        try:
            yield
        except TimeoutError:
            self._halve(halved)
            raise
        except ApiError as error:
            if error.status in _OVERLOADED:
                self._halve(halved)
            raise
        else:
            self.limit += _STEP
        finally:
            self._waiting -= 1

    def _halve(self, halved: int) -> None:
        """Lists that were sent before the limit was halved last have no part in how many are too many now."""
        if halved == self._halved:
            self.limit = max(min(self.limit / 2, FIRST), LEAST)
            self._halved += 1

"""The time by the API server's clock."""

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

log = logging.getLogger(__name__)

TOLERANCE: Final = 5.0
"""Seconds of difference that are ignored: `Date` has whole seconds, and a response takes time."""


class ServerClock:
    """The local clock, corrected by the `Date` header of the API server's responses where it is far off.

    The operator compares the times it records with times that the API server, kubelets and trainers wrote. If
    only the operator's clock were wrong or jumped, it would take one event for two.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._local() - self._ahead

    def synchronize(self, date: str | None) -> None:
        """Use the `Date` header of a response that has just arrived; one that is invalid changes nothing."""
        try:
            server = parsedate_to_datetime(date).timestamp() if date else None
        except ValueError:
            server = None
        if server is None:
            return
        ahead = self._local() - server
        if abs(ahead) <= TOLERANCE:
            self._ahead = 0.0
        elif abs(ahead - self._ahead) > TOLERANCE:
            log.warning("the local clock is %.0f s ahead of the API server's, which is used", ahead)
            self._ahead = ahead

"""What time it is, by the API server's clock."""

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

log = logging.getLogger(__name__)

NEAR: Final = 5.0
"""Seconds of difference that are taken for none: `Date` has whole seconds, and an answer takes its time."""


class ServerClock:
    """The clock of this machine, put right by the `Date` of the API server's answers where it is far off.

    What the operator notes down is compared with times that the API server, kubelets and trainers wrote. A
    clock that is wrong here alone, or jumps, would part what belongs together.
    """

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        self._ahead = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._local() - self._ahead

    def heard(self, date: str | None) -> None:
        """Take in the `Date` of an answer that has just come; one that cannot be read changes nothing."""
        try:
            said = parsedate_to_datetime(date).timestamp() if date else None
        except ValueError:
            said = None
        if said is None:
            return
        ahead = self._local() - said
        if abs(ahead) <= NEAR:
            self._ahead = 0.0
        elif abs(ahead - self._ahead) > NEAR:
            log.warning("the clock here is %.0f s ahead of the API server's, which counts", ahead)
            self._ahead = ahead

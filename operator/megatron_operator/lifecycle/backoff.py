"""The delay before a further gang restart."""

import random
from typing import Final

FIRST: Final = 10.0
"""Seconds before the second gang restart since a checkpoint."""
LONGEST: Final = 300.0
"""Seconds of the longest delay, before the jitter."""
JITTER: Final = 0.25
"""Largest share by which a delay is shortened or prolonged."""


def backoff(run_id: str, restarts: int) -> float:
    """Seconds after the last restart: 10, 20, 40 up to 300, with a jitter of 25 %.

    The jitter keeps runs that were hit by one fault from restarting at the same moment. It depends on the run
    and the count only, so that a restarted operator waits for the same time.
    """
    if restarts <= 0:
        return 0.0
    seconds = min(FIRST * 2.0 ** min(restarts - 1, 16), LONGEST)
    spread = random.Random(f"{run_id}/{restarts}").uniform(1 - JITTER, 1 + JITTER)
    return seconds * spread

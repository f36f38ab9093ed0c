"""How long to wait before a further gang restart."""

import random
from typing import Final

FIRST: Final = 10.0
LONGEST: Final = 300.0
JITTER: Final = 0.25


def backoff(run_id: str, restarts: int) -> float:
    """Seconds after the last restart: 10, 20, 40 up to 300, each a quarter more or less.

    The jitter keeps runs that one fault hit from starting at the same moment. It depends on the run and the
    count alone, so that a restarted operator waits as long.
    """
    if restarts <= 0:
        return 0.0
    seconds = min(FIRST * 2.0 ** min(restarts - 1, 16), LONGEST)
    spread = random.Random(f"{run_id}/{restarts}").uniform(1 - JITTER, 1 + JITTER)
    return seconds * spread

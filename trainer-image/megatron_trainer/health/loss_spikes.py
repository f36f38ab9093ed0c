"""Tells a spike of the loss: one that is many times the median of the losses before it."""

import json
import math
import statistics
from collections import deque
from pathlib import Path

# Fewer losses than this have no median worth the name.
_LEAST = 10
_TAIL_BYTES_A_LOSS = 600


class SpikeWatch:
    """`factor`: None to tell none. `window`: losses that the median is taken over."""

    def __init__(self, factor: float | None, window: int, progress_file: Path | None) -> None:
        self._factor = factor
        self._window = window
        self._losses: deque[float] = deque(maxlen=window)
        self._file = progress_file

    def remember(self, iteration: int) -> None:
        """The run goes on from `iteration`: take the losses before it from the progress file."""
        self._losses.clear()
        if self._factor is None or self._file is None or iteration == 0:
            return
        losses = dict(_tail(self._file, _TAIL_BYTES_A_LOSS * self._window))
        kept = [loss for done, loss in sorted(losses.items()) if done <= iteration and math.isfinite(loss)]
        self._losses.extend(kept)

    def judge(self, loss: float) -> str | None:
        """Why `loss` is a spike, None if it is not; then it counts for those after it."""
        if self._factor is not None and len(self._losses) >= min(_LEAST, self._window):
            median = statistics.median(self._losses)
            if loss > self._factor * median:
                return f"more than {self._factor:g} x {median:.4g}, the median of {len(self._losses)} before"
        self._losses.append(loss)
        return None


def _tail(path: Path, size: int) -> list[tuple[int, float]]:
    """Iteration and loss of the last lines of a progress file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - size))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
            found.append((int(record["iteration"]), float(record["lmLoss"])))
        except (ValueError, KeyError, TypeError):
            continue
    return found

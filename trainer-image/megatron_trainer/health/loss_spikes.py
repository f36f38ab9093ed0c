"""Detects a spike of the loss: a value many times the median of the losses before it."""

import json
import math
import statistics
from collections import deque
from pathlib import Path

# The median of fewer losses is not meaningful.
_MIN_LOSSES = 10
_TAIL_BYTES_PER_LOSS = 600


class LossSpikeDetector:
    """`factor`: None disables it. `window`: number of losses that the median is taken over."""

    def __init__(self, factor: float | None, window: int, progress_file: Path | None) -> None:
        self._factor = factor
        self._window = window
        self._losses: deque[float] = deque(maxlen=window)
        self._file = progress_file

    def load_history(self, iteration: int) -> None:
        """Read the losses up to `iteration`, from which the run resumes, from the progress file."""
        self._losses.clear()
        if self._factor is None or self._file is None or iteration == 0:
            return
        losses = dict(_read_tail(self._file, _TAIL_BYTES_PER_LOSS * self._window))
        kept = [loss for done, loss in sorted(losses.items()) if done <= iteration and math.isfinite(loss)]
        self._losses.extend(kept)

    def check(self, loss: float) -> str | None:
        """Return why `loss` is a spike; None if it is not, and then it counts for later ones."""
        if self._factor is not None and len(self._losses) >= min(_MIN_LOSSES, self._window):
            median = statistics.median(self._losses)
            if loss > self._factor * median:
                return f"more than {self._factor:g} x {median:.4g}, the median of {len(self._losses)} before"
        self._losses.append(loss)
        return None


def _read_tail(path: Path, size: int) -> list[tuple[int, float]]:
    """Return iteration and loss of the lines in the last `size` bytes of a progress file."""
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

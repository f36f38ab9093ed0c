"""What Megatron itself prints of its steps, with or without this project's launcher around it."""

import re
import statistics
from dataclasses import dataclass

INTERVAL = 5
"""Iterations between two lines (--log-interval)."""
_SLOW_LINES = 2
"""The first lines of a process: kernels are loaded and tuned then."""
_TIME = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+)")
_LOSS = re.compile(r"lm loss: (\S+)")
_MEMORY = re.compile(r"total device memory used: ([\d.]+)")


def flags(platform: str) -> list[str]:
    """Return the flags with which Megatron prints what `measure` reads; the memory is NVML's."""
    return ["--log-interval", str(INTERVAL), *(["--log-device-memory-used"] if platform == "gpu" else [])]


class NoFiguresError(ValueError):
    """Megatron printed too little to measure anything."""


@dataclass(frozen=True)
class Measured:
    """One process of Megatron. `memory_bytes`: in use on the whole device, None where it has none."""

    step_seconds: float
    losses: list[float]
    memory_bytes: float | None


def measure(log: str) -> Measured:
    """Return the median of the step times, without those of the first lines, and the rest of the figures.

    Raises NoFiguresError with the end of the log.
    """
    times = [float(each) / 1e3 for each in _TIME.findall(log)][_SLOW_LINES:]
    losses = [float(each) for each in _LOSS.findall(log)]
    if not times or not losses:
        raise NoFiguresError(f"Megatron printed {len(times)} step times: {' '.join(log[-500:].split())}")
    memory = [float(each) * 2**20 for each in _MEMORY.findall(log)]
    return Measured(statistics.median(times), losses, max(memory, default=None))

"""A run's course over its iterations: what was sampled from its status, and what its log has."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.status import MegatronRecipeStatus, Plan, Progress
from megatron_operator.sdk.losses import LossPoint

Object = dict[str, Any]
MAX_SAMPLES: Final = 2000
"""Samples of one run; beyond that they are thinned."""
_MEMORY: Final = "memory (MB) |"
_RESERVED: Final = re.compile(r"\bmax reserved: ([0-9]{1,12}(?:\.[0-9]{1,12})?)(?![0-9.])")
"""Megatron prints it once, after the first logged iterations, on ranks of data-parallel rank 0."""


@dataclass(frozen=True, slots=True)
class Point:
    """A run at one iteration. None where it is not known."""

    iteration: int
    lm_loss: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Fraction of the accelerator's peak."""


class Samples:
    """Points of one run: of its statuses since the page was started, or of its progress file."""

    def __init__(self) -> None:
        self._points: list[Point] = []

    def add(self, status: MegatronRecipeStatus) -> None:
        """Note the progress of a status; an iteration that is repeated replaces it and all after it."""
        point = None if status.progress is None else point_of(status.progress, status.plan)
        if point is None or (self._points and self._points[-1].iteration == point.iteration):
            return
        self.put(point)

    def put(self, point: Point) -> None:
        """Append a point; one of an iteration that is repeated replaces it and all after it."""
        while self._points and self._points[-1].iteration >= point.iteration:
            self._points.pop()
        self._points.append(point)
        if len(self._points) > MAX_SAMPLES:
            self._points = thinned(self._points)

    def points(self) -> list[Point]:
        """In order of iterations."""
        return list(self._points)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most half of MAX_SAMPLES of these points, which are in order of iterations, spread over all of them.

    Of each of equally wide ranges of iterations, the points with the lowest and the highest loss are kept, so
    that spikes stay and what was thinned before is not thinned faster than what is new; and the last one.
    """
    if not points:
        return []
    first, last = points[0].iteration, points[-1].iteration
    width = (last - first + 1) / (MAX_SAMPLES // 4 - 1)
    ranges: dict[int, list[Point]] = {}
    for each in points[:-1]:
        ranges.setdefault(int((each.iteration - first) / width), []).append(each)
    kept = {
        each.iteration: each
        for some in ranges.values()
        for each in (min(some, key=_by_loss), max(some, key=_by_loss))
    }
    return [*(kept[iteration] for iteration in sorted(kept)), points[-1]]


def _by_loss(point: Point) -> tuple[float, int]:
    """Orders points by loss, those of one loss by iteration: both ends of a range without losses are kept."""
    known = point.lm_loss is not None and math.isfinite(point.lm_loss)
    return (point.lm_loss or 0.0) if known else 0.0, point.iteration


def point_of(progress: Progress, plan: Plan | None) -> Point | None:
    """The point of a status; None before the first iteration."""
    if progress.iteration is None:
        return None
    peak = peak_tflops(plan)
    known = progress.tflops_per_gpu is not None and peak is not None
    mfu = progress.tflops_per_gpu / peak if known else None  # type: ignore[operator]
    return Point(
        progress.iteration, progress.lm_loss, progress.learning_rate, progress.tokens_per_second, mfu
    )


def peak_tflops(plan: Plan | None) -> float | None:
    """Peak of one accelerator by which the plan's MFU is computed, in TFLOP/s; None where it has none."""
    return None if plan is None or plan.expected is None else plan.expected.peak_tflops


def points_of_log(found: Iterable[LossPoint], plan: Plan | None) -> list[Point]:
    """Points of log lines. Tokens and work of a sample are the plan's, batch and duration are the log's."""
    expected = None if plan is None else plan.expected
    points = []
    for each in found:
        speed = mfu = None
        if expected is not None and plan is not None and each.step_seconds:
            ratio = expected.step_seconds / each.step_seconds
            if each.global_batch_size and plan.global_batch_size > 0:
                # The plan has the largest batch of a ramp-up.
                ratio *= each.global_batch_size / plan.global_batch_size
            speed = expected.tokens_per_second_per_gpu * plan.world_size * ratio
            mfu = expected.mfu * ratio if expected.mfu > 0 else None
        points.append(Point(each.iteration, each.lm_loss, each.learning_rate, speed, mfu))
    return points


def merge(samples: Sequence[Point], log: Sequence[Point]) -> list[Point]:
    """Both sources in order of iterations; within the iterations that the log has, the log's."""
    if not log:
        return list(samples)
    first, last = log[0].iteration, log[-1].iteration
    before = [each for each in samples if each.iteration < first]
    return [*before, *log, *(each for each in samples if each.iteration > last)]


def measured_memory(lines: Iterable[str]) -> int | None:
    """Largest memory that Megatron has reported in these lines (`max reserved`), in bytes; None without."""
    reports = (line.partition(_MEMORY)[2] for line in lines)
    found = [float(match[1]) for report in reports if (match := _RESERVED.search(report))]
    return round(max(found) * 2**20) if found else None

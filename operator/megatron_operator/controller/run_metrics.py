"""The operator's Prometheus metrics of each run, as its status has them."""

import math
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from megatron_operator.api.conditions import Phase
from megatron_operator.api.recovery_status import LostSeconds, RestartsByKind
from megatron_operator.api.status import Plan
from megatron_operator.lifecycle.ledger_weeks import TICKS, WeekSum, monday
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.stragglers import current_stragglers
from megatron_operator.lifecycle.time_ledger import CATEGORIES, account, until_of

_RUN: Final = ("namespace", "name")
_ABSENT: Final = math.nan
"""Of a series that the run does not have."""
_WITHOUT_ACCELERATORS: Final = frozenset(
    {Phase.EXPORTING, Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.REFUSED}
)


class _Metric(NamedTuple):
    name: str
    documentation: str
    label: str | None = None
    """The label beside those of the run."""
    label_values: tuple[str, ...] = ("",)
    """One series of a run for each; a single one without a label."""

    def family(self) -> GaugeMetricFamily:
        labels = _RUN if self.label is None else (*_RUN, self.label)
        return GaugeMetricFamily(f"megatron_recipe_{self.name}", self.documentation, labels=labels)


_METRICS: Final = (
    _Metric(
        "restarts",
        "Interruptions of the run: rank, pod, node, gang, hang, loss, resize, maintenance",
        "kind",
        tuple(RestartsByKind.model_fields),
    ),
    _Metric(
        "lost_seconds",
        "Seconds lost to interruptions: detect, schedule, start, load, redo",
        "phase",
        tuple(LostSeconds.model_fields),
    ),
    _Metric("lost_iterations", "Iterations that were repeated"),
    _Metric("goodput", "Step time of kept iterations over wall time since the first start"),
    _Metric("nodes_avoided", "Nodes that the run avoids"),
    _Metric("stragglers", "Ranks that are slow now; the others wait for them"),
    _Metric("accelerators", "Accelerators that the run holds or waits for; 0 once it is over or suspended"),
    _Metric("planned_step_seconds", "Duration of an iteration by the plan's estimate"),
    _Metric(
        "peak_tflops_per_gpu",
        "Peak TFLOP/s of an accelerator in the training precision; "
        "megatron_tflops_per_gpu over it is the MFU",
    ),
    _Metric("price_per_gpu_hour", "Price of an accelerator and hour, where the platform has one"),
    _Metric(
        "time_seconds",
        "Seconds since the recipe's creation, by category; falls where an incident is reported late",
        "category",
        CATEGORIES,
    ),
    _Metric(
        "accelerator_time_seconds",
        "The same times the accelerators that the run held",
        "category",
        CATEGORIES,
    ),
)
"""The metrics of which a run keeps its values, in the order of `_values`."""
_NO_VALUES: Final = array("d", [_ABSENT] * sum(len(each.label_values) for each in _METRICS))
_PHASE: Final = _Metric("phase", "1 for the phase of the run, also of a recipe without a plan", "phase")
_WARNINGS: Final = _Metric("warnings", "Number of warnings of the run's pods, by reason", "reason")
_WEEK: Final = _Metric(
    "week_accelerator_seconds",
    "Seconds since Monday, 00:00 UTC, times the accelerators that the run held, by use: useful, lost",
    "use",
    ("useful", "lost"),
)


@dataclass(frozen=True, slots=True)
class _Run:
    values: array[float]
    """One for each series of `_METRICS`: an object for each would take a hundred times the memory."""
    phase: str
    warnings: Mapping[str, int]
    """Number of `status.warnings` by reason."""
    week: str | None
    """The week of `in_week`; in the next one both are 0: a run that is over is not updated any more."""
    in_week: tuple[float, float]


class RunMetrics(Collector):
    """Keeps the numbers of all runs, and makes their series when they are scraped."""

    def __init__(self) -> None:
        self._runs: dict[RecipeKey, _Run] = {}

    def update(self, status: StatusBuilder) -> None:
        """Set the numbers of a run from its status; a recipe without a plan has only a phase."""
        plan, phase = status.current.plan, status.phase or Phase.PENDING
        if plan is None:
            self._runs[status.key] = _Run(_NO_VALUES, phase, {}, None, (0.0, 0.0))
            return
        times, week, in_week = _times(status)
        values = array("d", [*_values(status, plan), *times])
        warnings = Counter(each.reason for each in status.current.warnings)
        self._runs[status.key] = _Run(values, phase, warnings, week, in_week)

    def remove(self, key: RecipeKey) -> None:
        """Forget a recipe that no longer exists."""
        self._runs.pop(key, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The metrics without series, so that registering them collects nothing."""
        return [each.family() for each in (*_METRICS, _PHASE, _WARNINGS, _WEEK)]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics of all runs. Called by the thread that answers a scrape."""
        runs = list(self._runs.items())
        column = 0
        for metric in _METRICS:
            family = metric.family()
            for offset, label in enumerate(metric.label_values):
                labels = () if metric.label is None else (label,)
                for key, run in runs:
                    if not math.isnan(value := run.values[column + offset]):
                        family.add_metric((*key, *labels), value)
            column += len(metric.label_values)
            yield family
        phase = _PHASE.family()
        for key, run in runs:
            phase.add_metric((*key, run.phase), 1)
        yield phase
        warnings = _WARNINGS.family()
        for key, run in runs:
            for reason, number in run.warnings.items():
                warnings.add_metric((*key, reason), number)
        yield warnings
        week, now = _WEEK.family(), monday(time.time())
        for key, run in runs:
            if run.week is not None:
                for use, value in zip(_WEEK.label_values, run.in_week, strict=True):
                    week.add_metric((*key, use), value if run.week == now else 0.0)
        yield week


def _values(status: StatusBuilder, plan: Plan) -> Iterator[float]:
    """The values of `_METRICS` but for the times."""
    recovery, expected = status.recovery, plan.expected
    for kind in RestartsByKind.model_fields:
        yield getattr(recovery.restarts_by_kind, kind) or 0
    for name in LostSeconds.model_fields:
        yield getattr(recovery.lost_seconds, name) or 0.0
    yield recovery.lost_iterations
    yield _known(recovery.goodput)
    yield len(recovery.nodes_avoided)
    yield len(current_stragglers(status))
    yield 0 if status.phase in _WITHOUT_ACCELERATORS else plan.world_size
    yield _known(None if expected is None else expected.step_seconds)
    yield _known(None if expected is None else expected.peak_tflops)
    yield _known(plan.price_per_gpu_hour)


def _known(value: float | None) -> float:
    return _ABSENT if value is None else value


def _times(status: StatusBuilder) -> tuple[list[float], str | None, tuple[float, float]]:
    """Seconds and accelerator seconds of each category, the week, and its useful and lost ones."""
    ledger = status.current.ledger
    if ledger is None:
        return [_ABSENT] * (2 * len(CATEGORIES)), None, (0.0, 0.0)
    until = until_of(ledger, None if status.ended else status.now)
    found = account(ledger, status.recovery.history, until)
    ticks = [*(found.ticks.get(name, 0) for name in CATEGORIES)]
    accelerator_ticks = [*(found.accelerator_ticks.get(name, 0) for name in CATEGORIES)]
    name = monday(status.now)
    week = found.weeks.get(name, WeekSum())
    in_week = (week.ticks - week.lost) / TICKS, week.lost / TICKS
    return [each / TICKS for each in (*ticks, *accelerator_ticks)], name, in_week


RUNS: Final = RunMetrics()
"""Those of this process."""
REGISTRY.register(RUNS)

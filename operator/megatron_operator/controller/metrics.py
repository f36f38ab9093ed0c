"""The operator's Prometheus metrics: of its own work, and of each run as its status has it."""

import time
from collections.abc import Callable
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from megatron_operator.api.conditions import Phase
from megatron_operator.api.recovery_status import LostSeconds, RestartsByKind
from megatron_operator.lifecycle.ledger_weeks import TICKS, WeekSum, monday
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.stragglers import current_stragglers
from megatron_operator.lifecycle.time_ledger import CATEGORIES, account, until_of

RECONCILES: Final = Counter("megatron_operator_reconciles", "Reconciles, by outcome", ["outcome"])
RECONCILE_SECONDS: Final = Histogram(
    "megatron_operator_reconcile_seconds",
    "Duration of a reconcile",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
LOOP_LAG: Final = Histogram(
    "megatron_operator_event_loop_lag_seconds",
    "How late the event loop runs a task that is due, 20 times a second; above 0.05 something blocks it",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
QUEUE_LENGTH: Final = Gauge(
    "megatron_operator_queue_length", "Recipes that are due for a reconcile and wait for a worker"
)
LEADER: Final = Gauge("megatron_operator_leader", "1 while this replica is the leader, 0 while it stands by")
WRITES: Final = Counter(
    "megatron_operator_writes",
    "Write requests to the API server, by method and resource",
    ["method", "plural"],
)
API_REQUESTS: Final = Counter(
    "megatron_operator_api_requests",
    "Requests to the API server without watches; the code is `none` where no answer came",
    ["method", "plural", "code"],
)
STALE_OBJECTS: Final = Counter(
    "megatron_operator_stale_objects",
    "Objects whose change no watch delivered, found by comparing the caches with lists",
    ["plural"],
)
EVENTS_DROPPED: Final = Counter(
    "megatron_operator_events_dropped",
    "Events that were not posted: a recipe posts 25 at once, then one in 30 s",
)

_RUN: Final = ["namespace", "name"]
RESTARTS: Final = Gauge(
    "megatron_recipe_restarts",
    "Interruptions of the run: rank, pod, node, gang, hang, loss, resize, maintenance",
    [*_RUN, "kind"],
)
LOST_SECONDS: Final = Gauge(
    "megatron_recipe_lost_seconds",
    "Seconds lost to interruptions: detect, schedule, start, load, redo",
    [*_RUN, "phase"],
)
LOST_ITERATIONS: Final = Gauge("megatron_recipe_lost_iterations", "Iterations that were repeated", _RUN)
GOODPUT: Final = Gauge(
    "megatron_recipe_goodput", "Step time of kept iterations over wall time since the first start", _RUN
)
NODES_AVOIDED: Final = Gauge("megatron_recipe_nodes_avoided", "Nodes that the run avoids", _RUN)
STRAGGLERS: Final = Gauge(
    "megatron_recipe_stragglers", "Ranks that are slow now; the others wait for them", _RUN
)
ACCELERATORS: Final = Gauge(
    "megatron_recipe_accelerators",
    "Accelerators that the run holds or waits for; 0 once it is over or suspended",
    _RUN,
)
PLANNED_STEP_SECONDS: Final = Gauge(
    "megatron_recipe_planned_step_seconds", "Duration of an iteration by the plan's estimate", _RUN
)
PEAK_TFLOPS: Final = Gauge(
    "megatron_recipe_peak_tflops_per_gpu",
    "Peak TFLOP/s of an accelerator in the training precision; megatron_tflops_per_gpu over it is the MFU",
    _RUN,
)
PHASE: Final = Gauge("megatron_recipe_phase", "1 for the phase of the run", [*_RUN, "phase"])
TIME: Final = Gauge(
    "megatron_recipe_time_seconds",
    "Seconds since the recipe's creation, by category; falls where an incident is reported late",
    [*_RUN, "category"],
)
ACCELERATOR_TIME: Final = Gauge(
    "megatron_recipe_accelerator_time_seconds",
    "The same times the accelerators that the run held",
    [*_RUN, "category"],
)
WEEK_TIME: Final = Gauge(
    "megatron_recipe_week_accelerator_seconds",
    "Seconds since Monday, 00:00 UTC, times the accelerators that the run held, by use: useful, lost",
    [*_RUN, "use"],
)
PRICE: Final = Gauge(
    "megatron_recipe_price_per_gpu_hour", "Price of an accelerator and hour, where the platform has one", _RUN
)
_LOST: Final = tuple(LostSeconds.model_fields)
_KINDS: Final = tuple(RestartsByKind.model_fields)
_WITHOUT_ACCELERATORS: Final = frozenset(
    {Phase.EXPORTING, Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.REFUSED}
)
_OF_RUNS: Final = (
    RESTARTS,
    LOST_SECONDS,
    LOST_ITERATIONS,
    GOODPUT,
    NODES_AVOIDED,
    STRAGGLERS,
    ACCELERATORS,
    PLANNED_STEP_SECONDS,
    PEAK_TFLOPS,
    TIME,
    ACCELERATOR_TIME,
    WEEK_TIME,
    PRICE,
    PHASE,
)
_phase_of: dict[RecipeKey, str] = {}


def update_run(status: StatusBuilder) -> None:
    """Set the series of a run from its status; a recipe without a plan has none."""
    plan, recovery = status.current.plan, status.recovery
    if plan is None:
        return
    phase = status.phase or Phase.PENDING
    last = _phase_of.get(status.key, phase)
    if last != phase:
        PHASE.remove(*status.key, last)
    _phase_of[status.key] = phase
    PHASE.labels(*status.key, phase).set(1)
    for kind in _KINDS:
        RESTARTS.labels(*status.key, kind).set(getattr(recovery.restarts_by_kind, kind) or 0)
    for name in _LOST:
        LOST_SECONDS.labels(*status.key, name).set(getattr(recovery.lost_seconds, name) or 0.0)
    LOST_ITERATIONS.labels(*status.key).set(recovery.lost_iterations)
    NODES_AVOIDED.labels(*status.key).set(len(recovery.nodes_avoided))
    STRAGGLERS.labels(*status.key).set(len(current_stragglers(status)))
    holds_none = status.phase in _WITHOUT_ACCELERATORS
    ACCELERATORS.labels(*status.key).set(0 if holds_none else plan.world_size)
    if recovery.goodput is not None:
        GOODPUT.labels(*status.key).set(recovery.goodput)
    expected = plan.expected
    _set_or_remove(PLANNED_STEP_SECONDS, status.key, None if expected is None else expected.step_seconds)
    _set_or_remove(PEAK_TFLOPS, status.key, None if expected is None else expected.peak_tflops)
    _set_or_remove(PRICE, status.key, plan.price_per_gpu_hour)
    _update_time(status)


def _set_or_remove(gauge: Gauge, key: RecipeKey, value: float | None) -> None:
    if value is not None:
        gauge.labels(*key).set(value)
    else:
        gauge.remove(*key)


def _update_time(status: StatusBuilder) -> None:
    ledger = status.current.ledger
    if ledger is None:
        return
    until = until_of(ledger, None if status.ended else status.now)
    found = account(ledger, status.recovery.history, until)
    for name in CATEGORIES:
        TIME.labels(*status.key, name).set(found.ticks.get(name, 0) / TICKS)
        ACCELERATOR_TIME.labels(*status.key, name).set(found.accelerator_ticks.get(name, 0) / TICKS)
    name = monday(status.now)
    week = found.weeks.get(name, WeekSum())
    WEEK_TIME.labels(*status.key, "useful").set_function(_during(name, (week.ticks - week.lost) / TICKS))
    WEEK_TIME.labels(*status.key, "lost").set_function(_during(name, week.lost / TICKS))


def _during(week: str, value: float) -> Callable[[], float]:
    """The value until the week is over, then 0: a run that is over or suspended is not updated any more."""
    return lambda: value if monday(time.time()) == week else 0.0


def remove_run(key: RecipeKey) -> None:
    """Remove the series of a recipe that no longer exists."""
    if _phase_of.pop(key, None) is None:
        return
    for gauge in _OF_RUNS:
        gauge.remove_by_labels({"namespace": key.namespace, "name": key.name})

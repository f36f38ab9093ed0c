"""The operator's Prometheus metrics of its own work; `run_metrics` has those of runs."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECONCILES: Final = Counter("megatron_operator_reconciles", "Reconciles, by outcome", ["outcome"])
for _outcome in ("done", "error"):
    # A series that begins with its first event has no increase in a query.
    RECONCILES.labels(_outcome)
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
DECISIONS: Final = Counter(
    "megatron_operator_decisions",
    "Decisions that change a run or a node, by kind; a reconcile after which the run goes on is none",
    ["decision"],
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

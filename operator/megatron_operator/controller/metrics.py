"""What Prometheus is told of each run: the status in numbers."""

from typing import Final

from prometheus_client import Gauge

from megatron_operator.api.conditions import Phase
from megatron_operator.api.status import LostSeconds, RestartsByKind
from megatron_operator.controller.workqueue import Key
from megatron_operator.lifecycle.status_builder import Draft

_OF_A_RUN: Final = ["namespace", "name"]
RESTARTS: Final = Gauge("megatron_recipe_restarts", "Interruptions of the run, by kind", [*_OF_A_RUN, "kind"])
LOST_SECONDS: Final = Gauge(
    "megatron_recipe_lost_seconds", "Seconds lost to interruptions, by phase", [*_OF_A_RUN, "phase"]
)
LOST_ITERATIONS: Final = Gauge(
    "megatron_recipe_lost_iterations", "Iterations that were done again", _OF_A_RUN
)
GOODPUT: Final = Gauge(
    "megatron_recipe_goodput", "Step time of kept iterations over wall time since the first start", _OF_A_RUN
)
AVOIDED: Final = Gauge("megatron_recipe_nodes_avoided", "Nodes that the run keeps off", _OF_A_RUN)
ACCELERATORS: Final = Gauge(
    "megatron_recipe_accelerators", "Accelerators that the run holds or waits for", _OF_A_RUN
)
_PHASES: Final = tuple(LostSeconds.model_fields)
_KINDS: Final = tuple(RestartsByKind.model_fields)
_HOLDING_NOTHING: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED, Phase.REFUSED})
_shown: set[Key] = set()


def show(draft: Draft) -> None:
    """What the status says of a run that has been laid out."""
    plan, recovery = draft.status.plan, draft.recovery
    if plan is None:
        return
    _shown.add(draft.key)
    for kind in _KINDS:
        RESTARTS.labels(*draft.key, kind).set(getattr(recovery.restarts_by_kind, kind))
    for phase in _PHASES:
        LOST_SECONDS.labels(*draft.key, phase).set(getattr(recovery.lost_seconds, phase) or 0.0)
    LOST_ITERATIONS.labels(*draft.key).set(recovery.lost_iterations)
    AVOIDED.labels(*draft.key).set(len(recovery.nodes_avoided))
    over = draft.phase in _HOLDING_NOTHING
    ACCELERATORS.labels(*draft.key).set(0 if over else plan.world_size)
    if recovery.goodput is not None:
        GOODPUT.labels(*draft.key).set(recovery.goodput)


def forget(key: Key) -> None:
    """The recipe is gone, and its series with it."""
    if key not in _shown:
        return
    _shown.discard(key)
    for gauge in (RESTARTS, LOST_SECONDS, LOST_ITERATIONS, GOODPUT, AVOIDED, ACCELERATORS):
        gauge.remove_by_labels({"namespace": key.namespace, "name": key.name})

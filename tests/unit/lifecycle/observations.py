"""Observations of a run, as the recovery policy gets them."""

from dataclasses import replace
from typing import Any

from megatron_operator.lifecycle.observation import (
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
)

NOW = 10_000.0
LIMITS = Limits.parse(max_restarts=3, rendezvous_timeout=600, hang_timeout="auto")
TRAINING = Heartbeat("training", iteration=60, step_seconds=1.0, answered=NOW - 1, moved=NOW - 1)
HISTORY = History("run")


def pods(
    *phases: PodPhase, started: float | None = NOW - 5000, deleting: bool = False
) -> tuple[PodView, ...]:
    return tuple(PodView(rank, phase, started, deleting) for rank, phase in enumerate(phases))


HEALTHY = Observation(NOW, 2, pods(PodPhase.RUNNING, PodPhase.RUNNING), TRAINING, HISTORY, LIMITS)
STALLED = replace(TRAINING, moved=NOW - 121)
HANGING = replace(HEALTHY, heartbeat=STALLED)


def on_nodes(*changes: dict[str, Any]) -> tuple[PodView, ...]:
    """A running gang with a node for each pod, with changes to each."""
    whole = (
        PodView(rank, PodPhase.RUNNING, NOW - 5000, name=f"run-{rank}", node=f"node-{rank}")
        for rank in range(len(changes))
    )
    return tuple(replace(pod, **change) for pod, change in zip(whole, changes, strict=True))


def waiting(seconds: float, **changes: Any) -> Observation:
    pods = (*on_nodes({}), PodView(1, PodPhase.PENDING, name="run-1"))
    return replace(HEALTHY, pods=pods, waiting_since=NOW - seconds, **changes)

"""Whether the operator reaches the pods of a run, which their progress and hang detection need."""

from typing import Final

from megatron_contract.environment import PROGRESS_PORT

from megatron_operator.api.conditions import Condition
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

PATIENCE: Final = 120.0
"""Seconds for which pods may start, or the network may fail, before the status reports it."""


def unreachable_since(snapshot: RunSnapshot) -> float | None:
    """Since when no pod has answered although all run, seconds since the epoch; None before `PATIENCE`."""
    if snapshot.silence is None or not snapshot.all_running:
        return None
    since = max(snapshot.now - snapshot.silence.seconds, snapshot.running_since)
    return since if snapshot.now - since >= PATIENCE else None


def reported_unreachable(status: StatusBuilder) -> bool:
    """Whether the status reports that the pods do not answer."""
    running = status.condition(Condition.RUNNING)
    return running is not None and running.reason == Reason.PROGRESS_UNREACHABLE


def set_unreachable(status: StatusBuilder, snapshot: RunSnapshot, since: float) -> None:
    """Report that no pod answers, once: the message has the time, and stays until one answers."""
    if reported_unreachable(status):
        return
    problem = "" if snapshot.silence is None else f" ({snapshot.silence.problem})"
    text = (
        f"no pod has answered on port {PROGRESS_PORT} since {timestamp(since)}{problem}: "
        "progress is not known and hang detection is blind until one does"
    )
    status.set_condition(Condition.RUNNING, True, Reason.PROGRESS_UNREACHABLE, text)
    status.add_event(Reason.PROGRESS_UNREACHABLE, text, warning=True)

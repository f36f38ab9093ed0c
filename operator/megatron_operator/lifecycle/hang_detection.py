"""Whether a gang whose pods all run makes no progress."""

from typing import Final, NamedTuple

from megatron_contract.time_limits import LONG_ACTIVITY, operator_limit, operator_step_limit

from megatron_operator.lifecycle.observation import (
    HEARTBEAT_ENDED,
    HEARTBEAT_RENDEZVOUS,
    HEARTBEAT_TRAINING,
    Heartbeat,
    Observation,
)

STALE: Final = 60.0
"""Seconds after the last answer for which its iteration still counts."""


class NoProgress(NamedTuple):
    """Why a gang must be restarted."""

    cause: str
    hang: bool = True
    """False for ranks that had nothing to do yet: pods did not complete the rendezvous."""


def answered_recently(observation: Observation) -> bool:
    """Whether a pod answered within the last `STALE` seconds."""
    heartbeat = observation.heartbeat
    return heartbeat is not None and abs(observation.now - heartbeat.answered) <= STALE


def hang_limit(observation: Observation) -> float | None:
    """Seconds without a new iteration after which the run hangs; None when hangs are not detected."""
    limits, heartbeat = observation.limits, observation.heartbeat
    if heartbeat is None or (limits.hang_timeout is None and not limits.hang_automatic):
        return None
    in_steps = heartbeat.phase == HEARTBEAT_TRAINING and heartbeat.step_seconds is not None
    if not in_steps:
        return operator_limit(max(limits.hang_timeout or 0.0, LONG_ACTIVITY))
    if limits.hang_timeout is not None:
        return operator_limit(limits.hang_timeout)
    return operator_step_limit(heartbeat.step_seconds or 0.0)


def no_progress(observation: Observation, running_since: float) -> NoProgress | None:
    """Why the gang, whose pods all run since `running_since`, must be restarted; None while it need not.

    Pods that have not answered since then do not count as hanging: the operator may not reach them. Pods that
    stopped answering get the longest time-out, because the trainer has its own watchdog.
    """
    heartbeat = observation.heartbeat
    if heartbeat is None or heartbeat.answered < running_since or heartbeat.phase in HEARTBEAT_ENDED:
        return None
    since = max(running_since, heartbeat.moved or 0.0)
    silent = observation.now - since
    if not answered_recently(observation):
        return _unanswered(observation, heartbeat)
    if heartbeat.unmoved is not None:
        # The operator's wall clock may have jumped.
        silent = min(silent, heartbeat.unmoved)
    if heartbeat.phase in HEARTBEAT_RENDEZVOUS:
        limit = observation.limits.rendezvous_timeout
        if silent > limit:
            cause = f"pods did not complete the rendezvous within {limit:.0f} s (rendezvousTimeout)"
            return NoProgress(cause, hang=False)
        return None
    allowed = hang_limit(observation)
    if allowed is not None and silent > allowed:
        after = "" if heartbeat.iteration is None else f" after iteration {heartbeat.iteration}"
        setting = observation.limits.hang_timeout
        shown = "auto" if setting is None else f"{setting:.0f}s"
        cause = f"no new iteration for {silent:.0f} s{after}; hangTimeout {shown} allows {allowed:.0f} s"
        return NoProgress(cause)
    return None


def _unanswered(observation: Observation, heartbeat: Heartbeat) -> NoProgress | None:
    usual = hang_limit(observation)
    if usual is None:
        return None
    allowed = max(usual, operator_limit(LONG_ACTIVITY), observation.limits.rendezvous_timeout)
    silent = observation.now - heartbeat.answered
    return NoProgress(f"no pod has answered for {silent:.0f} s") if silent > allowed else None

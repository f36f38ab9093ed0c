"""Whether a gang whose pods all run makes no progress."""

from typing import Final

from megatron_operator.lifecycle.observation import (
    HEARTBEAT_ENDED,
    HEARTBEAT_RENDEZVOUS,
    HEARTBEAT_TRAINING,
    Heartbeat,
    Observation,
)

STEPS: Final = 30
"""`hangTimeout: auto`: no new iteration for the time of so many iterations is a hang."""
SHORTEST: Final = 120.0
"""Seconds. A shorter pause is no hang, however short the step: logging, data validation, slow storage."""
UNMEASURED: Final = 1800.0
"""Seconds of patience where no step time is known: loading, saving, evaluating, the first step."""
STALE: Final = 60.0
"""Seconds after the last answer for which its iteration still counts."""


def answered_recently(observation: Observation) -> bool:
    """Whether a pod answered within the last `STALE` seconds."""
    heartbeat = observation.heartbeat
    return heartbeat is not None and abs(observation.now - heartbeat.answered) <= STALE


def hang_limit(observation: Observation) -> float | None:
    """Seconds without a new iteration after which the run hangs; None when hangs are not detected."""
    limits, heartbeat = observation.limits, observation.heartbeat
    if limits.hang_timeout is not None:
        return limits.hang_timeout
    if not limits.hang_automatic or heartbeat is None:
        return None
    if heartbeat.phase == HEARTBEAT_TRAINING and heartbeat.step_seconds is not None:
        return max(STEPS * heartbeat.step_seconds, SHORTEST)
    return UNMEASURED


def hang_cause(observation: Observation, running_since: float) -> str | None:
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
        return _unanswered_cause(observation, heartbeat)
    if heartbeat.unmoved is not None:
        # The operator's wall clock may have jumped.
        silent = min(silent, heartbeat.unmoved)
    if heartbeat.phase in HEARTBEAT_RENDEZVOUS:
        limit = observation.limits.rendezvous_timeout
        if silent > limit:
            return f"pods did not complete the rendezvous within {limit:.0f} s (rendezvousTimeout)"
        return None
    allowed = hang_limit(observation)
    if allowed is not None and silent > allowed:
        after = "" if heartbeat.iteration is None else f" after iteration {heartbeat.iteration}"
        return f"no new iteration for {silent:.0f} s{after} (hangTimeout {allowed:.0f} s)"
    return None


def _unanswered_cause(observation: Observation, heartbeat: Heartbeat) -> str | None:
    usual = hang_limit(observation)
    if usual is None:
        return None
    allowed = max(usual, UNMEASURED, observation.limits.rendezvous_timeout)
    silent = observation.now - heartbeat.answered
    return f"no pod has answered for {silent:.0f} s" if silent > allowed else None

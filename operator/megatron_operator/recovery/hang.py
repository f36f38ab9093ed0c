"""Whether a gang that is all there makes no progress."""

from typing import Final

from megatron_operator.recovery.observation import (
    HEARTBEAT_ENDED,
    HEARTBEAT_GATHERING,
    HEARTBEAT_TRAINING,
    Observation,
)

STEPS: Final = 30
"""`hangTimeout: auto`: silence of that many iterations is a hang."""
SHORTEST: Final = 120.0
"""A pause of two minutes is no hang, however short the step: logs, validation of data, slow storage."""
UNMEASURED: Final = 1800.0
"""Longest wait where no step time says what is usual: loading, saving, evaluating, the first step."""


def hang_limit(observation: Observation) -> float | None:
    """Seconds without a new iteration that are a hang; None when hangs are not looked for."""
    limits, heartbeat = observation.limits, observation.heartbeat
    if limits.hang_timeout is not None:
        return limits.hang_timeout
    if not limits.hang_automatic or heartbeat is None:
        return None
    if heartbeat.phase == HEARTBEAT_TRAINING and heartbeat.step_seconds is not None:
        return max(STEPS * heartbeat.step_seconds, SHORTEST)
    return UNMEASURED


def stall(observation: Observation, together: float) -> str | None:
    """Why the gang, running whole since `together`, must be started anew; None while it need not.

    Pods that never answered since then are not blamed: it may be the network up to the operator.
    """
    heartbeat = observation.heartbeat
    if heartbeat is None or heartbeat.answered < together or heartbeat.phase in HEARTBEAT_ENDED:
        return None
    since = max(together, heartbeat.moved or 0.0)
    silent = observation.now - since
    if heartbeat.phase in HEARTBEAT_GATHERING:
        limit = observation.limits.rendezvous_timeout
        if silent > limit:
            return f"pods did not come together within {limit:.0f} s (rendezvousTimeout)"
        return None
    allowed = hang_limit(observation)
    if allowed is not None and silent > allowed:
        after = "" if heartbeat.iteration is None else f" after iteration {heartbeat.iteration}"
        return f"no new iteration for {silent:.0f} s{after} (hangTimeout {allowed:.0f} s)"
    return None

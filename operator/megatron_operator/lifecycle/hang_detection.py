"""Whether a gang that is all there makes no progress."""

from typing import Final

from megatron_operator.lifecycle.observation import (
    HEARTBEAT_ENDED,
    HEARTBEAT_GATHERING,
    HEARTBEAT_TRAINING,
    Heartbeat,
    Observation,
)

STEPS: Final = 30
"""`hangTimeout: auto`: silence of that many iterations is a hang."""
SHORTEST: Final = 120.0
"""A pause of two minutes is no hang, however short the step: logs, validation of data, slow storage."""
UNMEASURED: Final = 1800.0
"""Longest wait where no step time says what is usual: loading, saving, evaluating, the first step."""


STALE: Final = 60.0
"""Seconds without any answer after which nothing can be said of the iterations."""


def heard(observation: Observation) -> bool:
    """Whether a pod answered lately, by the operator's clock."""
    heartbeat = observation.heartbeat
    return heartbeat is not None and abs(observation.now - heartbeat.answered) <= STALE


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

    Pods that never answered since then are not blamed: it may be the network up to the operator. Those that
    stopped answering are given the longest wait there is: the trainer has a watchdog of its own.
    """
    heartbeat = observation.heartbeat
    if heartbeat is None or heartbeat.answered < together or heartbeat.phase in HEARTBEAT_ENDED:
        return None
    since = max(together, heartbeat.moved or 0.0)
    silent = observation.now - since
    if not heard(observation):
        return _unheard(observation, heartbeat)
    if heartbeat.unmoved is not None:
        # The operator's clock may have been set.
        silent = min(silent, heartbeat.unmoved)
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


def _unheard(observation: Observation, heartbeat: Heartbeat) -> str | None:
    usual = hang_limit(observation)
    if usual is None:
        return None
    allowed = max(usual, UNMEASURED, observation.limits.rendezvous_timeout)
    silent = observation.now - heartbeat.answered
    return f"no pod has answered for {silent:.0f} s" if silent > allowed else None

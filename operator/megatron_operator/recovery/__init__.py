"""What to do about what was seen: from an observation to a decision, without I/O."""

from megatron_operator.recovery.decide import Decision, Fail, RestartGang, Wait, decide
from megatron_operator.recovery.observation import Heartbeat, History, Limits, Observation, PodPhase, PodView

__all__ = [
    "Decision",
    "Fail",
    "Heartbeat",
    "History",
    "Limits",
    "Observation",
    "PodPhase",
    "PodView",
    "RestartGang",
    "Wait",
    "decide",
]

"""What to do about what was seen: from an observation to a decision, without I/O."""

from megatron_operator.recovery.decide import (
    Avoid,
    Decision,
    Fail,
    ForceDelete,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
)
from megatron_operator.recovery.elastic import Larger, fitting, larger
from megatron_operator.recovery.observation import (
    Capacity,
    Elastic,
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
)

__all__ = [
    "Avoid",
    "Capacity",
    "Decision",
    "Elastic",
    "Fail",
    "ForceDelete",
    "Heartbeat",
    "History",
    "Larger",
    "Limits",
    "Observation",
    "PodPhase",
    "PodView",
    "ReleaseNodes",
    "Resize",
    "RestartGang",
    "Wait",
    "decide",
    "fitting",
    "larger",
]

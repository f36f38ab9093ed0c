"""What to do about what was seen: from an observation to a decision, without I/O."""

from megatron_operator.lifecycle.elastic import Larger, fitting, larger
from megatron_operator.lifecycle.incident_history import appeared
from megatron_operator.lifecycle.incidents import (
    Replaced,
    checkpoint_saved,
    gang_restarted,
    node_lost,
    pods_replaced,
    resized,
    resized_by_hand,
    trained,
)
from megatron_operator.lifecycle.observation import (
    Capacity,
    Elastic,
    Heartbeat,
    History,
    Limits,
    Observation,
    PodPhase,
    PodView,
)
from megatron_operator.lifecycle.pod_termination import PodEnd, pod_end
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    Decision,
    Fail,
    ForceDelete,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    abandoned,
    decide,
)
from megatron_operator.lifecycle.reported_incidents import Place, goodput, reported

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
    "Place",
    "PodEnd",
    "PodPhase",
    "PodView",
    "ReleaseNodes",
    "Replaced",
    "Resize",
    "RestartGang",
    "Wait",
    "abandoned",
    "appeared",
    "checkpoint_saved",
    "decide",
    "fitting",
    "gang_restarted",
    "goodput",
    "larger",
    "node_lost",
    "pod_end",
    "pods_replaced",
    "reported",
    "resized",
    "resized_by_hand",
    "trained",
]

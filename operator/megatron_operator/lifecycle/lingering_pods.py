"""Pods that are deleted and stay although their node is up: a process of theirs cannot be killed.

They are not deleted by force: what still runs there could write to the volumes beside the pods that follow.
"""

from collections.abc import Mapping
from typing import Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.node_state import NodeStatus, node_of, unreachable_since
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

LINGERING: Final = 120.0
"""Seconds beyond a pod's own grace period after which its kubelet will not end it by itself."""
MAX_NAMED: Final = 3
"""Pods that are named; a volume that hangs keeps those of the whole gang."""
_WAITING: Final = frozenset({Phase.STARTING, Phase.RECOVERING, Phase.SUSPENDED})
"""Phases in which the run may wait for pods to end."""
_READ_AGAIN: Final = frozenset({Reason.LEFT_EARLY, Reason.GANG_RESTARTED})
"""Reasons whose message is a cause, which later reconciles take from the condition."""
_NAMED: Final = "; not ended by their kubelet: "
"""What separates the message of the condition from the pods."""


def name_lingering_pods(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Name the pods that keep a run waiting in the message of the condition Running.

    To be called when everything else of the status is set. An Event for the first ones has what to do.
    """
    running = status.condition(Condition.RUNNING)
    if running is None or running.status != "False" or running.reason in _READ_AGAIN:
        return
    pods = []
    if status.phase in _WAITING:
        pods = [pod for pod in snapshot.deleting_pods if _lingers(pod, snapshot.nodes, snapshot.now)]
    # A condition that this reconcile has not set has them already.
    message = running.message.partition(_NAMED)[0]
    if pods:
        message += _NAMED + _named(pods)
    if message == running.message:
        return
    status.set_condition(Condition.RUNNING, False, running.reason, message)
    if pods and not _were_named(status):
        text = (
            f"{_named(pods)}: a process cannot be killed, and the run waits; reboot the node, or drain it "
            "for that; use kubectl delete pod --force only once the processes of the pod are gone"
        )
        status.add_event(Reason.POD_NOT_ENDING, text, warning=True)


def _were_named(status: StatusBuilder) -> bool:
    return any(each.type == Condition.RUNNING and _NAMED in each.message for each in status.read.conditions)


def _lingers(pod: Object, nodes: Mapping[str, NodeStatus], now: float) -> bool:
    """Whether a pod runs long after its grace period, where nothing shows that its node is lost."""
    due, node = seconds(pod["metadata"].get("deletionTimestamp")), node_of(pod)
    if due is None or node is None or now <= due + LINGERING:
        return False
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended and unreachable_since(pod, nodes.get(node), now) is None


def _named(pods: list[Object]) -> str:
    """These pods with their nodes, and when they should have ended; those that wait longest."""
    ordered = sorted(pods, key=lambda pod: (pod["metadata"]["deletionTimestamp"], pod["metadata"]["name"]))
    named = [
        f"{pod['metadata']['name']} on {node_of(pod)} (due {pod['metadata']['deletionTimestamp']})"
        for pod in ordered[:MAX_NAMED]
    ]
    more = len(pods) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")

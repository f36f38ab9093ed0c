"""Deletes pods by force that nothing else ends or removes, with an Event for each."""

from collections.abc import Iterable

from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.actions import ForceDeletePods
from megatron_operator.lifecycle.node_state import node_of, stuck
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import StatusBuilder


def force_delete(status: StatusBuilder, pods: Iterable[Object]) -> ForceDeletePods:
    """The deletion of pods that are stuck, or of which no kubelet ends the containers."""
    pods = tuple(pods)
    for pod in pods:
        status.add_event(Reason.POD_DELETED_BY_FORCE, _reason(pod, status.now), warning=True)
    return ForceDeletePods(pods)


def _reason(pod: Object, now: float) -> str:
    name, node = pod["metadata"]["name"], node_of(pod) or "no node"
    if stuck(pod, now):
        return f"{name} on {node} has ended, and was not removed"
    return f"{name} is being deleted on {node}, which does not end it"

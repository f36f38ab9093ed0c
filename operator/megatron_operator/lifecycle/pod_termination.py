"""How a pod ended, in one line, from its status and the trainer's termination message."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from megatron_contract.environment import CONTAINER_NAME
from megatron_contract.exit_codes import ExitCode
from megatron_contract.termination import TerminationMessage

from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.node_state import disruption_target, node_of
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE
from megatron_operator.manifests.job_backends import stable_name
from megatron_operator.manifests.jobset import FINAL_EXIT_CODES

DELETED: Final = "Deleted"
DEVICE_TAINTED: Final = "DeletionByDeviceTaintManager"
"""A device of Dynamic Resource Allocation was tainted. The scheduler allocates others to the pod that
replaces this one."""
VOLUNTARY_DISRUPTIONS: Final = frozenset(
    {
        "PreemptionByScheduler",
        "EvictionByEvictionAPI",
        "TerminationByKubelet",
        DEVICE_TAINTED,
    }
)
"""Reasons of the condition DisruptionTarget."""
NODE_DISRUPTIONS: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
"""Reasons of the condition DisruptionTarget after which the node may be lost."""


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod ended."""

    cause: str
    """`worker-3: out of memory`."""
    exit_code: int | None = None
    checkpoint_iteration: int | None = None
    """Newest checkpoint in the trainer's termination message."""
    rank: int | None = None
    """Global rank in the trainer's termination message."""
    node: str | None = None
    disruption: str | None = None
    """Reason of the condition DisruptionTarget, or `Deleted`; None when the pod ended by itself."""
    evidence: str | None = None
    """That the hardware of its node failed, as the trainer's termination message has it."""

    @property
    def own_fault(self) -> bool:
        """False for a pod that only stopped waiting for its peers."""
        return self.exit_code != ExitCode.PEER_LOST

    @property
    def voluntary(self) -> bool:
        """Whether it was drained, preempted or deleted, and nothing failed."""
        if self.disruption == DELETED:
            return self.exit_code == ExitCode.TERMINATED
        on_reachable_node = self.disruption in NODE_DISRUPTIONS and self.exit_code is not None
        return self.disruption in VOLUNTARY_DISRUPTIONS or on_reachable_node

    @property
    def node_lost(self) -> bool:
        """Whether Kubernetes deleted it because its node is gone or unreachable."""
        return self.disruption in NODE_DISRUPTIONS and self.exit_code is None


def short_name(pod: Mapping[str, Any], job_name: str) -> str:
    """`llama3-8b-worker-3` -> `worker-3`."""
    return stable_name(dict(pod)).removeprefix(f"{job_name}-")


def pod_end(pod: Mapping[str, Any], job_name: str, container: str = CONTAINER_NAME) -> PodEnd | None:
    """How the pod ended or why it is being deleted; None while it runs or after it completed."""
    end = _end(pod, short_name(pod, job_name), container)
    return end and replace(end, node=node_of(pod), disruption=_disruption(pod, container))


def _end(pod: Mapping[str, Any], name: str, container: str) -> PodEnd | None:
    status = pod.get("status") or {}
    ended = _terminated(pod, container)
    if ended and ended.get("exitCode") != 0:
        return _container_end(name, ended)
    if container == CONTAINER_NAME and ended_early(pod):
        return PodEnd(f"{name}: ended with exit code 0 before the last iteration", 0)
    if target := disruption_target(pod):
        reason = target.get("message") or target.get("reason")
        return PodEnd(f"{name}: {reason}"[:LONGEST_CAUSE])
    if status.get("phase") == "Failed":
        reason = status.get("message") or status.get("reason") or "failed"
        return PodEnd(f"{name}: {reason}"[:LONGEST_CAUSE])
    if pod["metadata"].get("deletionTimestamp"):
        node = node_of(pod)
        return PodEnd(f"{name}: pod was deleted" + (f" (on {node})" if node else ""))
    return None


def _terminated(pod: Mapping[str, Any], container: str) -> dict[str, Any] | None:
    for state in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (state.get("state") or {}).get("terminated")
        if state.get("name") == container and ended:
            return dict(ended)
    return None


def _disruption(pod: Mapping[str, Any], container: str) -> str | None:
    if (pod.get("status") or {}).get("reason") == "Evicted":
        # The kubelet evicts a pod for the pod's own resource usage.
        return None
    if target := disruption_target(pod):
        return str(target.get("reason"))
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None
    finished = seconds((_terminated(pod, container) or {}).get("finishedAt"))
    # deletionTimestamp is the end of the grace period. A pod that ended before the request, or in the same
    # second, ended by itself: the training-operator deletes it at once.
    end_of_grace = seconds(metadata["deletionTimestamp"]) or 0.0
    requested = end_of_grace - (metadata.get("deletionGracePeriodSeconds") or 0)
    return DELETED if finished is None or finished > requested else None


def _container_end(name: str, ended: Mapping[str, Any]) -> PodEnd:
    code = int(ended["exitCode"])
    if ended.get("reason") == "OOMKilled":
        return PodEnd(f"{name}: out of memory", code)
    text = (ended.get("message") or "").strip()
    message = TerminationMessage.parse(text)
    if message is not None and message.message:
        cause = f"{name}: {message.message} (exit code {code})"[:LONGEST_CAUSE]
        evidence = message.evidence or None
        return PodEnd(cause, code, message.checkpoint_iteration, message.rank, evidence=evidence)
    last_line = text.splitlines()[-1] if text else str(ended.get("reason") or "ended")
    return PodEnd(f"{name}: {last_line} (exit code {code})"[:LONGEST_CAUSE], code)


def ended_early(pod: Mapping[str, Any]) -> bool:
    """Whether the trainer exited with code 0 without a termination message that the run is complete.

    Kubernetes sets such a pod to Succeeded, and the training-operator, if it is the Master, the whole job.
    """
    if (_terminated(pod, CONTAINER_NAME) or {}).get("exitCode") != 0:
        return False
    message = termination_message(pod)
    return message is None or not message.completed


def failed_for_replacement(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has failed in a way after which another one is to take its place."""
    code = (_terminated(pod, CONTAINER_NAME) or {}).get("exitCode")
    return (pod.get("status") or {}).get("phase") == "Failed" and code not in FINAL_EXIT_CODES


def container_message(pod: Mapping[str, Any], container: str) -> str:
    """The termination message of a container that has ended; empty while it runs."""
    return str((_terminated(pod, container) or {}).get("message") or "")


def termination_message(pod: Mapping[str, Any]) -> TerminationMessage | None:
    """The trainer's termination message; None while it runs, or when another program wrote the message."""
    return TerminationMessage.parse(container_message(pod, CONTAINER_NAME))

"""Why a pod ended, in one line, from what Kubernetes and the trainer say of it."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from megatron_contract.environment import CONTAINER_NAME
from megatron_contract.exit_codes import REASON_COMPLETED, ExitCode

from megatron_operator.api.times import seconds

LONGEST: Final = 400
DELETED: Final = "Deleted"
PEACEFUL: Final = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"})
BY_NODE: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod ended."""

    cause: str
    """`worker-3: out of memory`."""
    exit_code: int | None = None
    checkpoint_iteration: int | None = None
    """Newest checkpoint that the trainer named when it ended."""
    rank: int | None = None
    """Global rank that the trainer named."""
    node: str | None = None
    disruption: str | None = None
    """Who ended it, in the words of the condition DisruptionTarget, or `Deleted`; None: nobody."""

    @property
    def own_fault(self) -> bool:
        """False for a pod that only gave up waiting for others."""
        return self.exit_code != ExitCode.PEER_LOST

    @property
    def voluntary(self) -> bool:
        """Whether it was drained, preempted or deleted in peace, and nothing failed."""
        if self.disruption == DELETED:
            return self.exit_code == ExitCode.TERMINATED
        return self.disruption in PEACEFUL or (self.disruption in BY_NODE and self.exit_code is not None)

    @property
    def node_lost(self) -> bool:
        """Whether Kubernetes gave it up because its node is gone or unreachable."""
        return self.disruption in BY_NODE and self.exit_code is None


def short_name(pod: dict[str, Any], job_name: str) -> str:
    """`llama3-8b-worker-3` -> `worker-3`."""
    return str(pod["metadata"]["name"]).removeprefix(f"{job_name}-")


def pod_end(pod: dict[str, Any], job_name: str, container: str = CONTAINER_NAME) -> PodEnd | None:
    """How the pod ended or why it is being deleted; None while it lives."""
    end = _end(pod, short_name(pod, job_name), container)
    node = pod.get("spec", {}).get("nodeName")
    return end and replace(end, node=node, disruption=_disruption(pod, container))


def _end(pod: dict[str, Any], name: str, container: str) -> PodEnd | None:
    status = pod.get("status") or {}
    ended = _terminated(pod, container)
    if ended and ended.get("exitCode") != 0:
        return _container_end(name, ended)
    if container == CONTAINER_NAME and left_early(pod):
        return PodEnd(f"{name}: ended with exit code 0 before the last iteration", 0)
    if target := _disruption_target(pod):
        said = target.get("message") or target.get("reason")
        return PodEnd(f"{name}: {said}"[:LONGEST])
    if status.get("phase") == "Failed":
        said = status.get("message") or status.get("reason") or "failed"
        return PodEnd(f"{name}: {said}"[:LONGEST])
    if pod["metadata"].get("deletionTimestamp"):
        node = pod.get("spec", {}).get("nodeName")
        return PodEnd(f"{name}: pod was deleted" + (f" (on {node})" if node else ""))
    return None


def _terminated(pod: dict[str, Any], container: str) -> dict[str, Any] | None:
    for state in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (state.get("state") or {}).get("terminated")
        if state.get("name") == container and ended:
            return dict(ended)
    return None


def _disruption_target(pod: dict[str, Any]) -> dict[str, Any] | None:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return dict(condition)
    return None


def _disruption(pod: dict[str, Any], container: str) -> str | None:
    if (pod.get("status") or {}).get("reason") == "Evicted":
        # By its node, for what it used itself.
        return None
    if target := _disruption_target(pod):
        return str(target.get("reason"))
    metadata = pod["metadata"]
    if not metadata.get("deletionTimestamp"):
        return None
    finished = seconds((_terminated(pod, container) or {}).get("finishedAt"))
    # The time stamp is the end of the grace period. A pod that ended before it was asked to, or in the same
    # second, ended by itself: the training-operator deletes it at once.
    end_of_grace = seconds(metadata["deletionTimestamp"]) or 0.0
    asked = end_of_grace - (metadata.get("deletionGracePeriodSeconds") or 0)
    return DELETED if finished is None or finished > asked else None


def _container_end(name: str, ended: dict[str, Any]) -> PodEnd:
    code = int(ended["exitCode"])
    if ended.get("reason") == "OOMKilled":
        return PodEnd(f"{name}: out of memory", code)
    text = (ended.get("message") or "").strip()
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("message"):
        cause = f"{name}: {said['message']} (exit code {code})"
        iteration, rank = said.get("checkpointIteration"), said.get("rank")
        return PodEnd(
            cause[:LONGEST],
            code,
            iteration if isinstance(iteration, int) else None,
            rank if isinstance(rank, int) else None,
        )
    last_line = text.splitlines()[-1] if text else str(ended.get("reason") or "ended")
    return PodEnd(f"{name}: {last_line} (exit code {code})"[:LONGEST], code)


def left_early(pod: dict[str, Any]) -> bool:
    """Whether the trainer ended with exit code 0 and left no word that the run is done.

    Kubernetes takes such a pod for one that succeeded, and the training-operator, if it is the Master, the
    whole job.
    """
    ended = _terminated(pod, CONTAINER_NAME) or {}
    return ended.get("exitCode") == 0 and last_words(pod).get("reason") != REASON_COMPLETED


def last_words(pod: dict[str, Any], container: str = CONTAINER_NAME) -> dict[str, Any]:
    """The JSON that the trainer left when it ended well; empty while there is none."""
    try:
        said = json.loads((_terminated(pod, container) or {}).get("message") or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}

"""How pods ended that the operator deletes, in `status.recovery` until they are replaced and counted.

The end of a pod vanishes with it, and what the operator has cached vanishes when it is killed.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from megatron_operator.api.recovery_status import EndedPod, RecoveryStatus
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.pod_termination import PodEnd, pod_end, short_name
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_size import LONGEST_CAUSE, cut

MAX_PODS: Final = 8
"""At most so many ends are kept, those of pods that only lost a peer last."""


def record_ends(recovery: RecoveryStatus, pods: Iterable[Object], job_name: str) -> RecoveryStatus:
    """Record how pods ended that are about to be deleted."""
    ends = {pod: PodEnd(**dict(end)) for pod, end in recovery.ended_pods.items()}
    ends |= {short_name(pod, job_name): end for pod in pods if (end := pod_end(pod, job_name)) is not None}
    kept = sorted(ends.items(), key=lambda each: not each[1].own_fault)[:MAX_PODS]
    ended = {pod: EndedPod(**asdict(end) | {"cause": cut(end.cause, LONGEST_CAUSE)}) for pod, end in kept}
    return recovery.model_copy(update={"ended_pods": ended})


def recorded_ends(status: StatusBuilder, job: Object | None) -> dict[str, PodEnd]:
    """The recorded ends of this job's pods, by their names in the gang: `run-worker-3`."""
    recorded = status.current.job
    if job is None or recorded is None or recorded.uid != job["metadata"]["uid"]:
        return {}
    name = job["metadata"]["name"]
    return {f"{name}-{pod}": PodEnd(**dict(end)) for pod, end in status.recovery.ended_pods.items()}


def without_replaced(recovery: RecoveryStatus, pods: Iterable[Object], job_name: str) -> RecoveryStatus:
    """Drop the ends of the pods that these have replaced."""
    replaced = {short_name(pod, job_name) for pod in pods}
    left = {pod: end for pod, end in recovery.ended_pods.items() if pod not in replaced}
    return recovery.model_copy(update={"ended_pods": left})

"""Whether a run trains, starts or waits undisturbed, so that its snapshot may come from a cache.

Such a snapshot may be out of date. It is used for as long as nothing follows from it but progress.
"""

from typing import Any, Final

from megatron_operator.api.conditions import TRAINS, Condition, Phase
from megatron_operator.lifecycle.children import job_obstacle
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.object_metadata import is_deleting
from megatron_operator.lifecycle.observation import PodPhase
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests.job_backend import JobPhase

_PHASES: Final = TRAINS | {Phase.QUEUED, Phase.STARTING}


def is_new(recipe: dict[str, Any]) -> bool:
    """Whether its status has nothing yet but the default of the API server."""
    return (recipe.get("status") or {}).keys() <= {"observedGeneration"} and not is_deleting(recipe)


def was_undisturbed(recipe: dict[str, Any]) -> bool:
    """Whether a recipe's status reports a run of the newest spec that is queued, starts or trains."""
    status, metadata = recipe.get("status") or {}, recipe["metadata"]
    observed = status.get("observedGeneration") == metadata["generation"]
    return observed and status.get("phase") in _PHASES and not is_deleting(recipe)


def is_undisturbed(status: StatusBuilder, snapshot: RunSnapshot) -> bool:
    """Whether status and snapshot agree on a run with nothing left to do.

    That is a job in a queue without pods, or a complete gang that starts or trains.
    """
    job, recorded = snapshot.job, status.current.job
    if job is None or recorded is None or recorded.uid != snapshot.job_uid or is_deleting(job):
        return False
    if snapshot.leftover_pods or job_obstacle(status, job) is not None or _has_business(status):
        return False
    if snapshot.job_phase is JobPhase.SUSPENDED:
        return status.phase == Phase.QUEUED and not snapshot.pods
    if snapshot.job_phase is not JobPhase.ACTIVE or status.phase == Phase.QUEUED:
        return False
    if status.recovery.waiting_since is not None and not snapshot.has_templates:
        return False  # Where there is room is a question of the templates.
    if snapshot.gang_hash is None or snapshot.gang_hash != status.recovery.gang or snapshot.deleting_pods:
        return False
    if status.phase in TRAINS:
        return snapshot.all_running
    return all(view.phase in (PodPhase.PENDING, PodPhase.RUNNING) for view in snapshot.pod_views)


def _has_business(status: StatusBuilder) -> bool:
    """Whether the status records something that needs more than job and pods to be decided."""
    recovery = status.recovery
    if status.suspended or status.dropped or status.condition(Condition.INTERNAL_ERROR) is not None:
        return True
    if not status.is_true(Condition.PLANNED) or unrecovered(recovery) is not None:
        return True
    moving = recovery.restart_before or recovery.outgoing_job or recovery.elastic
    return bool(moving or recovery.nodes_avoided or recovery.node_evidence)

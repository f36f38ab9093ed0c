"""Ends the batch Jobs of a run: those that an edit, a suspension or further training leaves without use.

Every step may run twice. A Job is deleted only where it is the recipe's own.
"""

from typing import Final

from megatron_operator.api.labels import LABEL_ROLE
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.action_runner import execute
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, PODS
from megatron_operator.controller.children import find_own
from megatron_operator.controller.metrics import DECISIONS
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.lifecycle.actions import LATER, SOON, Requeue
from megatron_operator.lifecycle.children import batch_job_obstacle
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.forced_deletion import force_delete
from megatron_operator.lifecycle.job_status import set_obstacle, set_starting, set_suspended
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.observation import PodPhase
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.snapshot import abandoned_pods
from megatron_operator.lifecycle.stages import EXPORTS, STAGES, Stage, is_needed, is_over
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.suspension import is_settled
from megatron_operator.manifests import object_name

_ENDED: Final = (PodPhase.SUCCEEDED, PodPhase.FAILED)


def _is_left(pod: Object, stage: Stage) -> bool:
    """Whether this is a pod of the stage that has not ended."""
    of_stage = (pod["metadata"].get("labels") or {}).get(LABEL_ROLE) == stage.role
    return of_stage and (pod.get("status") or {}).get("phase") not in _ENDED


class StageJobs:
    """Deletes Jobs of stages.

    A method that returns a Requeue has set the condition that explains the wait; one that returns an Obstacle
    leaves that to its caller.
    """

    def __init__(self, api: ApiClient, nodes: NodeReader) -> None:
        self._api = api
        self._nodes = nodes

    async def delete(self, stage: Stage, job: Object, decision: str) -> Obstacle | None:
        """Delete a Job; the obstacle where the API server refuses that. `decision` is its metrics label."""
        try:
            await self._api.delete(BATCH_JOBS, job)
        except ApiError as error:
            if not error.refused:
                raise
            message = f"the {stage.noun} job cannot be deleted: {error.message}"
            return Obstacle(Reason.JOB_REFUSED, message, LATER)
        DECISIONS.labels(decision).inc()
        return None

    async def suspend(self, status: StatusBuilder) -> Requeue | None:
        """Delete the Jobs that the run waits for; None once their pods have ended.

        When the run continues, a preparation of `data.sources` keeps its complete shards; others begin again.
        """
        if is_settled(status):
            return None
        refused = None
        for stage, job in await self._own(status):
            if is_over(job):
                continue
            if not is_deleting(job) and (obstacle := await self.delete(stage, job, "suspend")):
                refused = obstacle
                continue
            if stage not in EXPORTS and not status.is_true(stage.condition):
                message = f"the {stage.noun} job is deleted: it is created again when the run continues"
                status.set_condition(stage.condition, False, Reason.SUSPENDED, message)
        if refused is not None:
            set_suspended(status, refused.message)
            return Requeue(refused.after, refused.reason)
        pods = await find_own(self._api, PODS, status)
        for stage in STAGES:
            if left := [pod for pod in pods if _is_left(pod, stage)]:
                await self.force_delete_abandoned(status, left)
                set_suspended(status, f"pods of the {stage.noun} job are ending: {len(left)}")
                return Requeue(SOON, Reason.SUSPENDED)
        return None

    async def end_unneeded(
        self, status: StatusBuilder, desired: DesiredState, *, trains: bool
    ) -> Obstacle | None:
        """Delete unfinished Jobs of stages that an edited run no longer has; None once that is done.

        Where it `trains` on, also all of its exports: they are of the training before.
        """
        if status.generation == 1:
            return None
        for stage, job in await self._own(status):
            ends = not is_needed(stage, desired.manifests) and not is_over(job)
            if (not ends and not (trains and stage in EXPORTS)) or is_deleting(job):
                continue
            if obstacle := await self.delete(stage, job, "end_stage_job"):
                return obstacle
        return None

    async def end_exports(self, status: StatusBuilder) -> Requeue | None:
        """Delete export Jobs of an earlier training of the run; None once they are gone.

        They would read a checkpoint that the training may delete, and theirs is not its result.
        """
        waits = None
        for stage in EXPORTS:
            name = f"{object_name(status.key.name)}-{stage.role}"
            job = await self._api.get(BATCH_JOBS, status.key.namespace, name)
            if job is None or batch_job_obstacle(status, job) is not None:
                continue
            if not is_deleting(job) and (obstacle := await self.delete(stage, job, "end_stage_job")):
                return set_obstacle(status, obstacle, running=False)
            message = f"the {stage.noun} job of the previous training is being deleted"
            set_starting(status, Reason.PODS_ENDING, message)
            waits = Requeue(SOON, message)
        return waits

    async def force_delete_abandoned(self, status: StatusBuilder, pods: list[Object]) -> None:
        """Delete pods of nodes that are lost for good: their kubelet will not end them."""
        nodes = await self._nodes.of(pods, status.now)
        if left := abandoned_pods(pods, nodes, status.now):
            await execute(self._api, [force_delete(status, left)])

    async def _own(self, status: StatusBuilder) -> list[tuple[Stage, Object]]:
        """The recipe's own Jobs of all stages, whatever its status has of them."""
        stages = {f"{object_name(status.key.name)}-{stage.role}": stage for stage in STAGES}
        found = await find_own(self._api, BATCH_JOBS, status)
        named = [(stages.get(job["metadata"]["name"]), job) for job in found]
        return [
            (stage, job)
            for stage, job in named
            if stage is not None and batch_job_obstacle(status, job) is None
        ]

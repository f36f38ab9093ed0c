"""Runs the batch Jobs of a run: import of weights, preparation or check of data before it, export after it.

Every step may run twice. A Job is created with POST, and deleted only where it is the recipe's own.
"""

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS
from megatron_operator.controller.children import (
    create,
    ensure_network_policy,
    pods_of_role,
    refusal,
)
from megatron_operator.controller.job_events import JobEvents
from megatron_operator.controller.metrics import DECISIONS
from megatron_operator.controller.node_reader import NodeReader
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.stage_jobs import StageJobs
from megatron_operator.controller.workload_reader import WorkloadReader
from megatron_operator.lifecycle.actions import DONE, LATER, SOON, Requeue, Result
from megatron_operator.lifecycle.children import (
    batch_job_obstacle,
    checks_data,
    set_stage_progress,
    stage_targets,
)
from megatron_operator.lifecycle.conversions import (
    accepted_exports,
    conversion_by,
    conversion_of,
    is_converted,
    set_all_converted,
    set_converted,
)
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.finished_job import expire_job
from megatron_operator.lifecycle.job_placement import is_placed_otherwise, with_platform_field
from megatron_operator.lifecycle.job_status import (
    set_prepared,
    set_succeeded,
    set_trained,
)
from megatron_operator.lifecycle.object_metadata import Object, is_deleting
from megatron_operator.lifecycle.ownership import Obstacle
from megatron_operator.lifecycle.pod_diagnosis import diagnose
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.stages import (
    CHECK,
    CONVERSIONS,
    EXPORT,
    EXPORT_BEST,
    EXPORTS,
    IMPORT,
    PREPARATION,
    Stage,
    StageState,
    created_for,
    is_retried,
    lacks_pods,
    manifest_of,
    must_prepare,
    set_data_ready,
    set_stage_begun,
    set_stage_failed,
    set_stage_obstacle,
    set_stage_queued,
    stage_state,
    was_prepared_by,
)
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import object_name


class Stages:
    """Runs the Jobs that a run waits for. `edited` retries one that failed."""

    def __init__(
        self,
        api: ApiClient,
        nodes: NodeReader,
        poller: ProgressPoller,
        workloads: WorkloadReader,
        events: JobEvents,
    ) -> None:
        self._api = api
        self._workloads = workloads
        self._events = events
        self._nodes = nodes
        self._poller = poller
        self.jobs = StageJobs(api, nodes)
        """Those that exist, which a run may have to end."""

    async def prepare(self, status: StatusBuilder, desired: DesiredState, *, edited: bool) -> Requeue | None:
        """Import the weights, then prepare or check the data; None once both are there.

        A Requeue comes with the condition that explains the wait.
        """
        if desired.run.resolved.export is not None and (waits := await self.jobs.end_exports(status)):
            return waits
        imports = [IMPORT] if manifest_of(IMPORT, desired.manifests) is not None else []
        if not imports:
            status.remove_conditions(IMPORT.condition)
        blocked = await self._convert(status, desired, imports, edited=edited)
        return blocked or await self._prepare_data(status, desired, edited=edited)

    async def finish(
        self, status: StatusBuilder, snapshot: RunSnapshot, desired: DesiredState, *, edited: bool
    ) -> Result:
        """Export what the run has trained, if its recipe asks for it; then the run has succeeded."""
        if edited and (obstacle := await self.jobs.end_unneeded(status, desired, trains=False)):
            # The edit is not done: a restart must find it so.
            status.forget_generation()
            status.set_condition(EXPORT.condition, False, obstacle.reason, obstacle.message)
            return Result(requeue=Requeue(obstacle.after, obstacle.reason))
        running = status.condition(Condition.RUNNING)
        text = "" if running is None or running.reason != Reason.SUCCEEDED else running.message
        if waits := await self._export(status, desired, edited=edited):
            if status.phase != Phase.FAILED:
                set_trained(status, text)
            return Result(requeue=waits)
        status.remove_conditions(Condition.FAILED)
        set_succeeded(status, text)
        return expire_job(status, snapshot)

    async def finish_exports(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """Follow the export Jobs of a spec whose edit is refused, until the run has succeeded or failed.

        No Job is created: what else is to be exported waits for the edit.
        """
        asked, known = accepted_exports(status), 0
        for stage in asked:
            name = f"{object_name(status.key.name)}-{stage.role}"
            job = await self._api.get(BATCH_JOBS, status.key.namespace, name)
            if job is None or is_deleting(job) or batch_job_obstacle(status, job) is not None:
                continue
            known += 1
            made = conversion_by(job)
            if is_converted(status, stage, made):
                continue
            waits, pods = await self._follow(status, stage, job, job, edited=False)
            if waits is not None:
                return Result(requeue=waits)
            self._poller.forget(status.key)
            set_converted(status, stage, made, pods)
        if known < len(asked):
            message = "an export job is due: it is created once the recipe is no longer refused"
            status.set_condition(Condition.EXPORTED, False, Reason.EXPORTING, message)
        if known < len(asked) or not asked:
            return DONE
        set_all_converted(status, asked)
        running = status.condition(Condition.RUNNING)
        set_succeeded(status, "" if running is None else running.message)
        return expire_job(status, snapshot)

    async def _prepare_data(
        self, status: StatusBuilder, desired: DesiredState, *, edited: bool
    ) -> Requeue | None:
        """Prepare the data, or check them, once for what the run reads; None once they are ready."""
        manifests = desired.manifests
        body, stage = manifests.data_job, CHECK if manifests.prepare_job is None else PREPARATION
        if (
            body is not None
            and must_prepare(status, manifests)
            and not await self._was_prepared(status, body)
        ):
            blocked, pods = await self._run(status, desired, stage, body, edited=edited)
            if blocked is not None:
                return blocked
            set_data_ready(status, stage, manifests, pods)
        elif body is not None and status.current.prepared is not None:
            # An earlier release may have recorded it in its own way.
            status.set(prepared=manifests.prepare_hash)
        # The answer of a pod that prepared is not one of the pods that train.
        self._poller.forget(status.key)
        set_prepared(status, desired)
        return None

    async def _was_prepared(self, status: StatusBuilder, body: Object) -> bool:
        """Whether an earlier release has prepared or checked the data, and recorded it in its own way."""
        if status.current.prepared is None:
            return False
        job = await self._api.get(BATCH_JOBS, status.key.namespace, body["metadata"]["name"])
        if job is None or batch_job_obstacle(status, job) is not None:
            return False
        return was_prepared_by(status, job, body)

    async def _export(self, status: StatusBuilder, desired: DesiredState, *, edited: bool) -> Requeue | None:
        """Export the newest checkpoint, then the best; None once those that are asked for are done."""
        asked = [s for s in EXPORTS if manifest_of(s, desired.manifests) is not None]
        if not asked:
            status.remove_conditions(EXPORT.condition)
        elif len(asked) == 1:
            # One folder for both: what the status has of the other checkpoint may have been there.
            status.set(**{CONVERSIONS[EXPORT if asked[0] is EXPORT_BEST else EXPORT_BEST]: None})
        return await self._convert(status, desired, asked, edited=edited)

    async def _convert(
        self, status: StatusBuilder, desired: DesiredState, stages: list[Stage], *, edited: bool
    ) -> Requeue | None:
        """Run these conversions in turn, each once for a pair of folders; None once all are done."""
        for stage in stages:
            body = manifest_of(stage, desired.manifests)
            wanted = conversion_of(stage, desired.run.resolved, status.key.name)
            if body is None or wanted is None or is_converted(status, stage, wanted):
                continue
            blocked, pods = await self._run(status, desired, stage, body, edited=edited)
            if blocked is not None:
                return blocked
            # The answer of this Job's pod is not one of the next stage's.
            self._poller.forget(status.key)
            set_converted(status, stage, wanted, pods)
        # An edit may have removed the one that was running.
        status.set(conversion=None)
        if stages:
            set_all_converted(status, stages)
        return None

    async def _run(
        self, status: StatusBuilder, desired: DesiredState, stage: Stage, body: Object, *, edited: bool
    ) -> tuple[Requeue | None, list[Object]]:
        """Run a stage's Job; what it waits for, or None once it is complete, and the Job's pods."""
        existing = await self._api.get(BATCH_JOBS, status.key.namespace, body["metadata"]["name"])
        if existing is None:
            # An export follows a training job, which has the policy.
            before = stage not in EXPORTS
            if before and (obstacle := await self._policy_obstacle(status, desired)) is not None:
                return set_stage_obstacle(status, stage, obstacle), []
            try:
                created = await create(self._api, BATCH_JOBS, created_for(body, status.generation))
            except ApiError as error:
                if not error.refused:
                    raise
                return set_stage_obstacle(status, stage, refusal(error, Reason.JOB_REFUSED)), []
            set_stage_begun(status, stage, f"the {stage.noun} job is being created")
            if created is not None:
                DECISIONS.labels("create_stage_job").inc()
            return Requeue(SOON if created is None else LATER, stage.running), []
        if (obstacle := batch_job_obstacle(status, existing)) is not None:
            return set_stage_obstacle(status, stage, obstacle), []
        edited = edited or is_retried(status, stage, existing)
        return await self._follow(status, stage, existing, body, edited=edited)

    async def _follow(
        self, status: StatusBuilder, stage: Stage, existing: Object, body: Object, *, edited: bool
    ) -> tuple[Requeue | None, list[Object]]:
        """What the recipe's own Job of a stage waits for, as `_run` returns it; replace it if need be."""
        state = stage_state(stage, existing, body, status.generation, edited=edited)
        pods = await pods_of_role(self._api, status, stage.role)
        waits = state in (StageState.QUEUED, StageState.RUNNING)
        if waits and is_placed_otherwise(existing, body, pods):
            state = StageState.OUTDATED
        if state in (StageState.OUTDATED, StageState.DELETING):
            if state is StageState.OUTDATED and (
                obstacle := await self.jobs.delete(stage, existing, "replace_stage_job")
            ):
                return set_stage_obstacle(status, stage, obstacle), []
            # A run that had failed has begun again.
            status.set(conversion=None)
            message = f"the previous {stage.noun} job is being deleted"
            set_stage_begun(status, stage, message)
            return Requeue(SOON, message), []
        if state is StageState.COMPLETE:
            return None, pods
        if state is StageState.FAILED:
            self._poller.forget(status.key)
            set_stage_failed(status, stage, existing, pods)
            return Requeue(LATER, stage.failed), pods
        await self._wait_for(status, stage, existing, body, pods, queued=state is StageState.QUEUED)
        return Requeue(LATER, stage.running), pods

    async def _policy_obstacle(self, status: StatusBuilder, desired: DesiredState) -> Obstacle | None:
        """Why the run cannot have its NetworkPolicy, which is there before the first of its pods."""
        try:
            return await ensure_network_policy(self._api, status, desired.manifests.network_policy)
        except ApiError as error:
            if not error.refused:
                raise
            return Obstacle(Reason.JOB_REFUSED, error.message, LATER)

    async def _wait_for(
        self,
        status: StatusBuilder,
        stage: Stage,
        job: Object,
        body: Object,
        pods: list[Object],
        *,
        queued: bool,
    ) -> None:
        # The Job creates no other pod before this one has ended.
        await self.jobs.force_delete_abandoned(status, pods)
        self._poller.watch(status.key, stage_targets(pods))
        set_stage_progress(status, self._poller.reading(status.key))
        if queued:
            set_stage_queued(
                status, stage, job, await self._workloads.held_back(status, stage.condition, job)
            )
            return
        name = job["metadata"]["name"]
        events = await self._events.of_batch_job(job) if lacks_pods(job) else ()
        obstacle = diagnose(pods, events, name)
        if obstacle is not None:
            obstacle = with_platform_field(obstacle, body, pods, self._nodes.taints())
        if obstacle is None and stage is PREPARATION and checks_data(pods, self._poller.reading(status.key)):
            status.set(phase=Phase.CHECKING)
            message = f"job {name} checks the data against the run"
            status.set_condition(stage.condition, False, Reason.CHECKING, message)
            return
        set_stage_begun(status, stage, f"job {name} is running")
        if obstacle is not None:
            status.set_condition(stage.condition, False, obstacle.reason, obstacle.message)

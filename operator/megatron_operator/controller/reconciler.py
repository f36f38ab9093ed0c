"""Reconciles one MegatronRecipe."""

import logging
from typing import Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import OperatorError
from megatron_operator.api.reasons import Reason
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.api.status import MegatronRecipeStatus
from megatron_operator.controller.action_runner import execute
from megatron_operator.controller.api_client import EXPECTED_ERRORS, ApiClient, ApiError
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.children import JOB_EXISTS, Children
from megatron_operator.controller.events import EventPoster
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.controller.recipe_planner import RecipePlanner, Unplanned
from megatron_operator.controller.run_metrics import RUNS
from megatron_operator.controller.snapshot_reader import SnapshotReader
from megatron_operator.controller.stages import Stages
from megatron_operator.controller.supervisor import Supervisor
from megatron_operator.controller.traces import TraceSender
from megatron_operator.lifecycle.accepted_spec import record_accepted
from megatron_operator.lifecycle.actions import DISCARDED, DONE, LATER, SOON, DeleteJob, Requeue, Result, wait
from megatron_operator.lifecycle.children import job_obstacle
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.finished_job import clean_up
from megatron_operator.lifecycle.forced_deletion import force_delete
from megatron_operator.lifecycle.incident_traces import finished_traces
from megatron_operator.lifecycle.job_status import (
    reset_job_status,
    set_internal_error,
    set_job_replaced,
    set_obstacle,
    set_plan,
    set_prepared,
    set_starting,
    set_suspended,
)
from megatron_operator.lifecycle.ledger_state import update_ledger, update_reported_times
from megatron_operator.lifecycle.lingering_pods import name_lingering_pods
from megatron_operator.lifecycle.object_metadata import Object, content_hash, is_deleting
from megatron_operator.lifecycle.progress_status import update_goodput, update_iteration
from megatron_operator.lifecycle.readiness import set_readiness
from megatron_operator.lifecycle.recovery import (
    accelerators_before,
    add_incident_events,
    record_edited_count,
)
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.stages import has_trained, reached_end
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.suspension import NO_POD_LEFT, end_suspended_pods
from megatron_operator.lifecycle.undisturbed import is_new, was_undisturbed
from megatron_operator.lifecycle.write_delay import may_rest_on_caches, only_figures_change, write_delay
from megatron_operator.manifests.job_backend import JobPhase

log = logging.getLogger(__name__)

BEING_PLANNED: Final = "the recipe is being planned"
PLAN_PENDING: Final = Result(requeue=Requeue(LATER, BEING_PLANNED), discarded=True)
_AFTER_TRAINING: Final = (Phase.EXPORTING, Phase.SUCCEEDED, Phase.FAILED, Phase.REFUSED)
"""Phases of a run that has trained, unless an edit has it train on."""


class ReconcileError(OperatorError):
    """A reconcile met an unexpected error, its cause; the status has it as condition InternalError.

    Another one is due after at most `within` seconds; None where the back-off alone decides.
    """

    def __init__(self, within: float | None) -> None:
        super().__init__("unexpected error")
        self.within = within


class Reconciler:
    """Level-triggered: every reconcile judges everything again, and all that must persist is in the status.

    A run that is queued, starts or trains undisturbed is judged by the caches. If anything follows from
    them but progress, or how far the pods of a start are, the recipe and its run are read from the API
    server, and the cached ones have had no effect.

    The first run of a name starts from the recipe that the watch delivered. Its job is owned by that recipe,
    and the status is written only where it has not changed; otherwise it is read and reconciled again.

    Snapshot -> desired state -> decision -> status, written once -> actions -> Events. Three writes precede
    the status, so that a restarted operator repeats them: deleting the job of an earlier generation, changing
    its priority in a queue, and cordoning a bad node.
    """

    def __init__(
        self,
        api: ApiClient,
        planner: RecipePlanner,
        snapshots: SnapshotReader,
        children: Children,
        stages: Stages,
        supervisor: Supervisor,
        poller: ProgressPoller,
        caches: Caches,
        traces: TraceSender | None = None,
    ) -> None:
        self._api = api
        self._traces = traces
        self._caches = caches
        self._planner = planner
        self._snapshots = snapshots
        self._children = children
        self._stages = stages
        self._supervisor = supervisor
        self._poller = poller
        self._events = EventPoster(api)

    async def __call__(self, key: RecipeKey) -> float | None:
        """Reconcile a recipe; returns the seconds until the next time, None to wait for an event.

        Raises one of EXPECTED_ERRORS when the API server cannot be used, and ReconcileError after an
        unexpected error has been reported; the work queue retries.
        """
        cached = self._caches.recipes.get(*key)
        if cached is not None and (is_new(cached) or was_undisturbed(cached)):
            result = await self._reconcile_recipe(cached, cached=True)
            # A new recipe is reconciled again once it has its plan, or its name turns out to be taken.
            if not result.discarded or (is_new(cached) and result.requeue is not None):
                return result.delay
        recipe = await self._api.get(RECIPES, *key)
        if recipe is None or is_deleting(recipe):
            self._forget(key)
            return None
        return (await self._reconcile_recipe(recipe, cached=False)).delay

    async def _reconcile_recipe(self, recipe: Object, *, cached: bool) -> Result:
        """What has been done. It is discarded, and nothing written, where `cached` is not enough."""
        status = StatusBuilder.of(recipe, self._api.clock.now())
        key, before, revision = status.key, status.current, self._planner.revision
        if status.dropped:
            log.warning(
                "%s: unknown parts of the status are dropped: %s", key, ", ".join(status.dropped[:20])
            )
        snapshot = self._snapshots.from_cache(status) if cached else None
        if cached and snapshot is None:
            return DISCARDED
        result = await self._result(status, snapshot)
        if result.discarded:
            return result
        if status.internal_error is None:
            status.remove_conditions(Condition.INTERNAL_ERROR)
        set_readiness(status)
        judged_by_caches = snapshot is not None and snapshot.cached
        if judged_by_caches and (result.actions or status.internal_error or not may_rest_on_caches(status)):
            return DISCARDED
        reading = self._poller.reading(key)
        self._poller.rest(key, not result.actions and only_figures_change(status, reading))
        if rest := 0.0 if result.actions else write_delay(status, reading):
            status.current, result = before, result.within(rest, "progress is written later")
        elif status.changed() and not await self._write(status, cached=cached):
            return DISCARDED
        self._report(status, before)
        try:
            await execute(self._api, result.actions, result.decision)
        except EXPECTED_ERRORS as error:
            # The status has the decision: what executes it later adds no other Event.
            await self._events.post_with_refusal(status, error)
            raise
        await self._events.post(status)
        if status.internal_error is not None:
            raise ReconcileError(result.delay) from status.internal_error
        if self._planner.revision != revision and status.is_false(Condition.PLANNED):
            # The refusal may not have been written yet when recipes that wait for the change were listed.
            return result.within(SOON, "platform or catalog have changed")
        return result

    async def _result(self, status: StatusBuilder, snapshot: RunSnapshot | None) -> Result:
        """Bring the status up to the cluster. An unexpected error leaves it as it was, with a condition.

        Without a `snapshot` the cluster is read.
        """
        before = status.current
        try:
            if snapshot is None:
                snapshot = await self._snapshots.read(status)
            result = await self._reconcile(status, snapshot)
            if result.discarded:
                return result
            add_incident_events(status, before.recovery or RecoveryStatus())
            name_lingering_pods(status, snapshot)
            update_ledger(status, snapshot)
            if status.changed():
                reading = self._poller.reading(status.key)
                update_goodput(status, reading)
                update_reported_times(status, reading)
            return result
        except EXPECTED_ERRORS:
            raise
        except Exception as error:
            status.current = before
            status.events.clear()
            result = DONE
            if snapshot is None and status.suspended:
                result = await self._suspend_unread(status)
            has_job = status.current.job is not None or (snapshot is not None and snapshot.job is not None)
            set_internal_error(status, error, running=has_job or status.suspended or status.ended)
            return result

    async def _suspend_unread(self, status: StatusBuilder) -> Result:
        """Suspend a run of which nothing but the job can be read."""
        job = await self._snapshots.read_job(status)
        if job is None or job_obstacle(status, job) is not None:
            return DONE
        return wait(SOON, Reason.SUSPENDED, [] if is_deleting(job) else [DeleteJob(job)])

    async def _reconcile(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """From the snapshot to the status, and to the actions that follow once it is written."""
        job, phase = snapshot.job, snapshot.job_phase
        if job is not None and (obstacle := job_obstacle(status, job)) is not None:
            self._poller.forget(status.key)
            if status.ended and not status.edited:
                return DONE
            return Result(requeue=set_obstacle(status, obstacle, running=False))
        edited = status.edited or self._planner.refusal_is_outdated(status)
        if status.ended and not edited:
            self._poller.forget(status.key)
            return clean_up(status, snapshot)
        # A run that has trained holds no accelerators, and what is left to export does not wait.
        expired = job is None and status.phase in _AFTER_TRAINING and reached_end(status)
        if status.suspended and phase is not JobPhase.SUCCEEDED and not expired:
            return await self._suspend(status, snapshot)
        if job is not None and not edited:
            return await self._follow(status, snapshot)

        accelerators = accelerators_before(status, snapshot)
        may_continue = job is not None and phase is not JobPhase.FAILED
        exporting = status.phase == Phase.EXPORTING
        desired = await self._planner.plan(status, running=may_continue or exporting)
        if desired is Unplanned.PENDING:
            return await self._await_plan(status, snapshot)
        if desired is Unplanned.REFUSED:
            if status.internal_error is None:
                status.observe_generation()
            if may_continue or exporting:
                return await self._follow_refused(status, snapshot)
            self._poller.forget(status.key)
            return DONE
        if job is None and has_trained(status, desired):
            status.observe_generation()
            record_accepted(status)
            return await self._stages.finish(status, snapshot, desired, edited=edited)
        if job is None and status.suspended:
            return await self._suspend_edited(status, snapshot)

        if edited:
            # Also where a refusal of this generation was observed: nothing of the edit is done yet.
            status.forget_generation()
            if job is None and status.phase == Phase.FAILED:
                reset_job_status(status)
                status.remove_conditions(Condition.FAILED)
        running = phase is JobPhase.ACTIVE
        same = job is not None and may_continue and content_hash(job) == desired.job_hash
        trained = phase is JobPhase.SUCCEEDED and (same or has_trained(status, desired))
        if not trained and (job is None or may_continue):
            # Where the run had succeeded, the edit has it train on.
            status.remove_conditions(Condition.SUCCEEDED)
        if edited and not trained and (job is None or phase is JobPhase.SUCCEEDED):
            unneeded = await self._stages.jobs.end_unneeded(status, desired, trains=True)
            if unneeded is not None:
                return Result(requeue=set_obstacle(status, unneeded, running=False))
        blocked = None
        if not trained and (job is None or may_continue):
            blocked = await self._children.ensure_claims(status, desired, running=running)
        outdated = False
        if blocked is None and job is not None:
            current = same or trained
            outdated = not current or not await self._children.has_priority(status, snapshot, desired)
            if outdated:
                # Before the status records that this generation is observed: a restart must find it undone.
                blocked = await self._children.delete_outdated(status, job, running=running)
        if blocked is not None and job is not None:
            # The generation is not observed yet: the job is replaced once the claims exist, or it may be.
            if not running:
                return Result(requeue=blocked)
            result = await self._supervisor.supervise(status, snapshot, waits=blocked.reason)
            return result.within(blocked.after, blocked.reason)
        if same or not trained:
            set_plan(status, desired)
        if edited:
            record_edited_count(status, snapshot, accelerators, desired.plan.world_size)
        status.observe_generation()
        if blocked is not None:
            return Result(requeue=blocked)
        if job is None:
            return await self._start(status, snapshot, desired, edited=edited)
        if outdated:
            return self._replaced(status, snapshot)
        if same:
            set_prepared(status, desired)
        return await self._follow(status, snapshot, desired)

    async def _suspend(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """Delete jobs and pods. The plan is only made once they are gone, so that it cannot prevent it."""
        self._supervisor.gives_up_pods(status.key)
        if (ending := end_suspended_pods(status, snapshot)) is not None:
            return ending
        if (waits := await self._stages.jobs.suspend(status)) is not None:
            return Result(requeue=waits)
        desired = await self._planner.plan(status, running=False)
        if desired is Unplanned.PENDING:
            return await self._await_plan(status, snapshot)
        if desired is Unplanned.REFUSED and status.internal_error is None:
            status.observe_generation()
            return DONE
        if isinstance(desired, DesiredState):
            set_plan(status, desired)
        set_suspended(status, NO_POD_LEFT)
        return DONE

    async def _suspend_edited(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """Suspend a run that an edit has train on. One that had succeeded stays so until it continues."""
        if not status.is_true(Condition.SUCCEEDED):
            return await self._suspend(status, snapshot)
        status.observe_generation()
        return DONE

    async def _await_plan(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """Supervise what runs until the plan is made."""
        if snapshot.job is None or snapshot.job_phase is JobPhase.FAILED:
            # Nothing to report: a write now would double those of each recipe that is created.
            return PLAN_PENDING
        result = await self._supervisor.supervise(status, snapshot, waits=BEING_PLANNED)
        return result.within(LATER, BEING_PLANNED)

    def _replaced(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """The job of an earlier generation is deleted; the next reconcile creates the new one."""
        self._supervisor.gives_up_pods(status.key)
        update_iteration(status, snapshot)
        set_job_replaced(status)
        return wait(SOON, Reason.JOB_REPLACED)

    async def _start(
        self, status: StatusBuilder, snapshot: RunSnapshot, desired: DesiredState, *, edited: bool
    ) -> Result:
        """Import weights, prepare the data, wait for pods of an earlier job to end, create the job."""
        if blocked := await self._stages.prepare(status, desired, edited=edited):
            return Result(requeue=blocked)
        if left := snapshot.leftover_pods:
            set_starting(status, Reason.PODS_ENDING, f"{len(left)} pods of the previous job are ending")
            return wait(SOON, Reason.PODS_ENDING, [force_delete(status, snapshot.abandoned_pods)])
        self._caches.first_runs.begin(status.key)
        job = await self._children.create_job(status, desired)
        if isinstance(job, Requeue):
            return Result(requeue=job, discarded=job is JOB_EXISTS)
        self._snapshots.job_created(status.key)
        return await self._supervisor.supervise(status, snapshot.with_job(job))

    async def _follow(
        self, status: StatusBuilder, snapshot: RunSnapshot, desired: DesiredState | None = None
    ) -> Result:
        """Supervise the job; once it has succeeded, finish the run. `desired` is that of an edit."""
        result, edited = await self._supervisor.supervise(status, snapshot), desired is not None
        finished = status.phase == Phase.EXPORTING or (edited and status.phase == Phase.SUCCEEDED)
        if result.discarded or not finished:
            return result
        planned = desired or await self._planner.plan(status, running=True)
        if planned is Unplanned.PENDING:
            return result.within(LATER, BEING_PLANNED)
        if planned is Unplanned.REFUSED:
            return await self._stages.finish_exports(status, snapshot)
        return await self._stages.finish(status, snapshot, planned, edited=edited)

    async def _follow_refused(self, status: StatusBuilder, snapshot: RunSnapshot) -> Result:
        """Supervise the job of the spec before one that is refused, and finish its exports."""
        result = DONE if snapshot.job is None else await self._supervisor.supervise(status, snapshot)
        if result.discarded or status.phase != Phase.EXPORTING:
            return result
        return await self._stages.finish_exports(status, snapshot)

    async def _write(self, status: StatusBuilder, *, cached: bool) -> bool:
        """Write the status; False when the recipe no longer exists, or has changed since it was `cached`."""
        try:
            self._caches.recipes.refresh(await self._api.apply(RECIPES, status.patch(), "status"))
        except ApiError as error:
            if error.not_found or (error.conflict and cached):
                return False
            raise
        return True

    def _report(self, status: StatusBuilder, before: MegatronRecipeStatus) -> None:
        """Metrics, traces and log lines of what has been written, and the caches that it makes obsolete."""
        RUNS.update(status)
        if self._traces is not None:
            for trace in finished_traces(status, before):
                self._traces.send(trace)
        if status.phase != before.phase:
            log.info("%s: %s", status.key, status.phase)
        for event in status.events:
            log.info("%s: %s: %s", status.key, event.reason, event.message)
        old, new = before.recovery or RecoveryStatus(), status.recovery
        if new.pods_as_of != old.pods_as_of or new.restarts != old.restarts:
            self._snapshots.pod_ends.drop(status.key)

    def _forget(self, key: RecipeKey) -> None:
        self._planner.forget(key)
        self._supervisor.forget(key)
        self._snapshots.forget(key)
        RUNS.remove(key)

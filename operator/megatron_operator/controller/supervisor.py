"""Supervises the job of a run: follows its pods, and decides on recovery."""

import logging
from dataclasses import replace
from typing import Final

from megatron_operator.api.conditions import Phase
from megatron_operator.api.platform import BadNodes, Maintenance
from megatron_operator.controller.action_runner import kind_of
from megatron_operator.controller.api_client import EXPECTED_ERRORS
from megatron_operator.controller.capacity_finder import CapacityFinder
from megatron_operator.controller.cordoner import Cordoner
from megatron_operator.controller.progress_poller import ProgressPoller
from megatron_operator.lifecycle.accepted_spec import record_accepted, recovery_limits
from megatron_operator.lifecycle.actions import DISCARDED, LATER, SOON, Result, wait
from megatron_operator.lifecycle.finished_job import expire_job
from megatron_operator.lifecycle.job_status import adopt_job, set_internal_error
from megatron_operator.lifecycle.maintenance import until_departure
from megatron_operator.lifecycle.node_health import forget_outdated, judge_nodes
from megatron_operator.lifecycle.object_metadata import is_deleting
from megatron_operator.lifecycle.observation import Capacity, Limits
from megatron_operator.lifecycle.recovery import (
    apply_decision,
    awaits_another_job,
    pods_to_move,
    recheck_delay,
    unfinished_actions,
)
from megatron_operator.lifecycle.recovery_observation import (
    judge_announcements,
    observe,
    report_kept_nodes,
)
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    ChangeDomain,
    ForceDelete,
    Move,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
)
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import RecipeKey, StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.lifecycle.write_delay import may_rest_on_caches
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.node_avoidance import avoided

log = logging.getLogger(__name__)

_COUNTED_AS: Final[dict[type, str]] = {Avoid: "avoid_nodes", ForceDelete: "force_delete_pods"}
"""Decisions that the metric names by their actions."""
_REFUSED: Final = "the recipe as it is now is refused, so that its job could not be created again"
_WAITS: Final = "an edit waits ({}), so that the job could not be created again"


class Supervisor:
    """Supervises jobs. It writes nothing itself but the cordon of a bad node."""

    def __init__(self, poller: ProgressPoller, capacity: CapacityFinder, cordoner: Cordoner) -> None:
        self._poller = poller
        self._capacity = capacity
        self._cordoner = cordoner

    async def supervise(
        self, status: StatusBuilder, snapshot: RunSnapshot, *, waits: str | None = None
    ) -> Result:
        """Bring the status up to the snapshot of a run that has a job, and decide on recovery.

        `waits`: why an edit cannot be applied yet. Nor could another job be created then, so this one is not
        given up for other nodes or another size. Discarded where the snapshot is from the caches, and more
        than progress follows from it.
        """
        if is_deleting(snapshot.existing_job):
            return wait(SOON, "the job is being deleted")
        exporting = status.phase == Phase.EXPORTING
        if exporting:
            # What is polled then are the pods of the export.
            snapshot = replace(snapshot, reading=None, silence=None)
        else:
            # First, so that the pods are polled whatever else fails.
            self._poller.watch(status.key, snapshot.progress_targets)
        adopt_job(status, snapshot.existing_job)
        record_accepted(status)
        update_status(status, snapshot)
        if snapshot.cached and not may_rest_on_caches(status):
            return DISCARDED
        if status.ended or status.phase == Phase.EXPORTING:
            self._capacity.give_up_places(status.key)
            if not exporting:
                self._poller.forget(status.key)
            return expire_job(status, snapshot)
        keeps_job = awaits_another_job(status, snapshot) and await self._is_kept(status, snapshot, waits)
        limits = recovery_limits(status)
        if (unfinished := unfinished_actions(status, snapshot, keeps_job=keeps_job)) is not None:
            stays = status.recovery.outgoing_job == snapshot.job_uid
            return _with_restart(status, snapshot, limits, unfinished) if stays else unfinished
        gone, nodes = snapshot.nodes_gone, snapshot.announcing or {}
        status.set(recovery=forget_outdated(status.recovery, gone, nodes, status.now))
        known = await self._cordoner.rules(status)
        rules, maintenance = known or (BadNodes(), Maintenance())
        if known is not None:  # Otherwise what is recorded of nodes stays.
            status.set(recovery=judge_nodes(status.recovery, snapshot.nodes, rules, status.now))
            judge_announcements(status, snapshot, limits, maintenance)
        capacity = await self._find_capacity(status, snapshot, limits, maintenance)
        observation = observe(status, snapshot, limits, capacity, rules)
        decision = decide(observation)
        if snapshot.cached and not isinstance(decision, Wait):
            return DISCARDED
        creates = isinstance(decision, ChangeDomain) or (
            isinstance(decision, Move | Avoid | ReleaseNodes) and not snapshot.moves_pods
        )
        why = _REFUSED if waits is None else _WAITS.format(waits)
        kept_job = creates and await self._is_kept(status, snapshot, waits)
        if kept_job and isinstance(decision, Move):
            observation = replace(observation, maintenance=replace(decision.move, obstacle=why))
            decision = decide(observation)
        kept = set(status.recovery.nodes_avoided) - avoided(snapshot.existing_job) if keeps_job else set()
        if kept_job and isinstance(decision, Avoid):
            kept.update(decision.nodes)
        report_kept_nodes(status, observation, dict.fromkeys(kept, why))
        # Whether a recipe is refused is known of a resize: it is planned for the count.
        resizes = waits is not None and isinstance(decision, Resize)
        if resizes or (kept_job and isinstance(decision, ChangeDomain)):
            return wait(recheck_delay(status, snapshot) or LATER, why)
        if isinstance(decision, Resize):
            if decision.count <= snapshot.accelerators:
                self._capacity.give_up_places(status.key)
            elif not self._capacity.grow(status, snapshot, decision.count):
                return wait(SOON, "another run grows")
        if isinstance(decision, ChangeDomain) and not self._capacity.grow(
            status, snapshot, snapshot.accelerators
        ):
            return wait(SOON, "another run grows")
        if isinstance(decision, Move) and not self._capacity.move(
            status, pods_to_move(snapshot, decision.move)
        ):
            return wait(SOON, "the room for a move is to be found again")
        if isinstance(decision, Avoid):
            pool = len(capacity.places or ()) or snapshot.size
            await self._cordoner.cordon(status, decision.nodes, rules, pool)
        result = apply_decision(status, snapshot, decision, keeps_job=kept_job)
        if status.ended:
            self._poller.forget(status.key)
        if isinstance(decision, Wait):
            result = result.within(recheck_delay(status, snapshot), "pods may change without an event")
            departure = until_departure(status.recovery, status.now)
            return result.within(departure, "maintenance of a node is announced for later")
        return replace(result, decision=_COUNTED_AS.get(type(decision)) or kind_of(decision))

    async def _is_kept(self, status: StatusBuilder, snapshot: RunSnapshot, waits: str | None) -> bool:
        """Whether the job would be lost if it were deleted: an edit `waits`, or the recipe is refused."""
        return waits is not None or not await self._capacity.can_be_created_again(status, snapshot)

    def gives_up_pods(self, key: RecipeKey) -> None:
        """The run gives up its pods, and the places that were kept free for it."""
        self._poller.forget(key)
        self._capacity.give_up_places(key)

    def forget(self, key: RecipeKey) -> None:
        """Drop what is kept about a recipe."""
        self._poller.forget(key)
        self._capacity.forget(key)

    async def _find_capacity(
        self, status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, maintenance: Maintenance
    ) -> Capacity:
        """The run's capacity; none while it cannot be computed, so that recovery goes on without it."""
        try:
            return await self._capacity.find(status, snapshot, limits, maintenance)
        except EXPECTED_ERRORS:
            raise
        except Exception as error:
            set_internal_error(status, error, running=True)
        return Capacity()


def _with_restart(status: StatusBuilder, snapshot: RunSnapshot, limits: Limits, deletion: Result) -> Result:
    """The deletion of a job, which may be refused for long, after a restart of its gang if that hangs."""
    decision = decide(observe(status, snapshot, limits, Capacity(), BadNodes()))
    if snapshot.job_phase is not JobPhase.ACTIVE or not isinstance(decision, RestartGang):
        return deletion
    restart = apply_decision(status, snapshot, decision)
    return replace(restart, actions=restart.actions + deletion.actions, decision=kind_of(decision))

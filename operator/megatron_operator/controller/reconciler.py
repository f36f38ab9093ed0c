"""One look at one recipe: what it asks for, what there is, the next step, and what the status says."""

import logging
from dataclasses import dataclass
from typing import Any, Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import KIND
from megatron_operator.api.times import seconds
from megatron_operator.controller import metrics
from megatron_operator.controller.actions import Step, perform
from megatron_operator.controller.api_client import EVENTS, JOBS, RECIPES, ApiError, Cluster, Object
from megatron_operator.controller.capacity_finder import RoomFinder
from megatron_operator.controller.children import (
    LATER,
    SOON,
    Blocked,
    adopt,
    deleting,
    give_up,
    hash_of,
    hold,
    owned_by,
    part,
    provide_claims,
    provide_data,
    provide_job,
    role_pods,
    told_prepared,
)
from megatron_operator.controller.config_source import Sources
from megatron_operator.controller.events import post
from megatron_operator.controller.node_reader import Nodes
from megatron_operator.controller.progress_poller import Poller
from megatron_operator.controller.termination_events import ends_from_events
from megatron_operator.controller.workqueue import Key
from megatron_operator.lifecycle import Avoid, PodEnd, Wait, pod_end
from megatron_operator.lifecycle.desired import INCOMPATIBLE, Wanted, accept, incompatible, refuse, want
from megatron_operator.lifecycle.progress_report import told_goodput
from megatron_operator.lifecycle.recovery import (
    carry_out,
    limits_of,
    observation,
    tell_edited_count,
    tell_incidents,
    unfinished,
)
from megatron_operator.lifecycle.recovery_policy import decide
from megatron_operator.lifecycle.snapshot import Scene
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.lifecycle.status_update import follow, newcomers
from megatron_operator.manifests import object_name, pytorchjob
from megatron_operator.manifests.metadata import ROLE_TRAINER
from megatron_operator.manifests.pytorchjob import JobPhase

log = logging.getLogger(__name__)

STARTING_LOOK: Final = 3.0
"""Seconds between two looks at pods that do not all run: what keeps them may be told in events alone."""
PATIENT_LOOK: Final = 15.0


@dataclass(frozen=True, slots=True)
class Held:
    """A change that has to wait while the job that it would replace runs on."""

    job: Object
    seconds: float


class Reconciler:
    """Level-triggered: everything is read anew, and all that must be remembered is in the status.

    The last words of pods are the one exception: a pod that is replaced takes them along, so they are kept
    from the watch. Without them the cause of a restart is told less well, nothing else changes.
    """

    def __init__(
        self, cluster: Cluster, nodes: Nodes, sources: Sources, rooms: RoomFinder, poller: Poller
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._rooms = rooms
        self._sources = sources
        self._poller = poller
        self._ends: dict[Key, dict[str, PodEnd]] = {}

    def note_pod(self, key: Key, pod: dict[str, Any]) -> None:
        """Remember how a pod ended."""
        job_name = (pod["metadata"].get("labels") or {}).get(pytorchjob.LABEL_JOB_NAME)
        end = pod_end(pod, job_name) if job_name else None
        if end is None:
            return
        known = self._ends.setdefault(key, {})
        name = pod["metadata"]["name"]
        # A deletion that follows the end says nothing new.
        if end.exit_code is not None or name not in known:
            known[name] = end

    async def __call__(self, key: Key) -> float | None:
        body = await self._cluster.get(RECIPES, *key)
        if body is None or deleting(body):
            self._poller.forget(key)
            self._rooms.forget(key)
            self._ends.pop(key, None)
            metrics.forget(key)
            return None
        draft = Draft.of(body, self._cluster.clock.now())
        before, phase = draft.recovery, draft.phase
        step = await self._step(draft)
        tell_incidents(draft, before)
        if draft.changed():
            told_goodput(draft, self._poller.reading(key))
            if not await self._write(draft):
                return None
        metrics.show(draft)
        if draft.phase != phase:
            log.info("%s: %s", key, draft.phase)
        for notice in draft.notices:
            log.info("%s: %s: %s", key, notice.reason, notice.message)
        if draft.recovery.pods_as_of != before.pods_as_of or draft.recovery.restarts != before.restarts:
            self._ends.pop(key, None)
        await perform(self._cluster, step)
        await post(self._cluster, draft)
        return step.again

    async def _write(self, draft: Draft) -> bool:
        """Whether the recipe was still there to be told."""
        try:
            await self._cluster.apply(RECIPES, draft.patch(), "status")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    async def _step(self, draft: Draft) -> Step:
        job = await self._cluster.get(JOBS, draft.key.namespace, object_name(draft.key.name))
        if job is not None and not owned_by(job, draft.uid):
            return self._foreign(draft, job)
        edited = draft.status.observed_generation != draft.generation
        if not edited and draft.phase in (Phase.SUCCEEDED, Phase.FAILED):
            return await self._ended(draft, job)
        wanted, lay_on = None, _lies_on(draft, job)
        if edited or job is None:
            wanted = await self._want(draft, job)
            if wanted is None and (job is None or pytorchjob.state(job).phase is JobPhase.FAILED):
                draft.set(observed_generation=draft.generation)
                self._poller.forget(draft.key)
                return Step()
        succeeded = job is not None and pytorchjob.state(job).phase is JobPhase.SUCCEEDED
        if draft.suspended and not succeeded:
            draft.set(observed_generation=draft.generation)
            return await self._suspend(draft, job)
        if wanted is not None:
            made = await self._provide(draft, wanted, job, lay_on, edited=edited)
            if isinstance(made, Held):
                return await self._go_on(draft, made)
            draft.set(observed_generation=draft.generation)
            if isinstance(made, Step):
                return made
            job = made
        draft.set(observed_generation=draft.generation)
        assert job is not None, "a recipe that is neither refused nor waiting has a job"
        if deleting(job):
            return Step(again=SOON)
        return await self._follow(draft, job)

    async def _go_on(self, draft: Draft, held: Held) -> Step:
        """Follow the job of the generation before; the new one stays to be dealt with."""
        step = await self._follow(draft, held.job)
        step.again = min(step.again or held.seconds, held.seconds)
        return step

    def _foreign(self, draft: Draft, job: Object) -> Step:
        name = job["metadata"]["name"]
        if deleting(job) or any(o.get("kind") == KIND for o in job["metadata"].get("ownerReferences") or []):
            hold(draft, "PreviousJobEnding", f"{name} of an earlier recipe is ending", running=False)
            return Step(again=SOON)
        message = f"{pytorchjob.KIND} {name} exists and is not this recipe's; delete it, or rename the recipe"
        hold(draft, "NameTaken", message, running=False)
        return Step(again=LATER)

    async def _ended(self, draft: Draft, job: Object | None) -> Step:
        self._poller.forget(draft.key)
        if draft.phase != Phase.FAILED:
            return Step()
        final = job is not None and pytorchjob.state(job).phase in (JobPhase.FAILED, JobPhase.SUCCEEDED)
        if job is not None and not final:
            return Step(again=SOON, delete_job=None if deleting(job) else job)
        # Pods that nobody ends, since their node is gone, would be there for ever.
        left = [pod for pod in await role_pods(self._cluster, draft, ROLE_TRAINER) if deleting(pod)]
        await give_up(self._cluster, self._nodes, left, draft.now)
        return Step(again=LATER if left else None)

    async def _want(self, draft: Draft, job: Object | None) -> Wanted | None:
        running = job is not None and pytorchjob.state(job).phase is not JobPhase.FAILED
        try:
            wanted = want(draft, await self._sources.known())
        except InvalidRecipeError as refused:
            refuse(draft, "Refused", refused, running=running)
            return None
        if errors := incompatible(draft, wanted):
            refuse(draft, INCOMPATIBLE, InvalidRecipeError(errors), running=running)
            return None
        accept(draft, wanted)
        return wanted

    async def _provide(
        self, draft: Draft, wanted: Wanted, job: Object | None, lay_on: int | None, *, edited: bool
    ) -> Object | Step | Held:
        """The job that is wanted, or what to wait for; the run lay on `lay_on` accelerators before."""
        same = job is not None and hash_of(job) == wanted.manifests.job_hash
        state = pytorchjob.state(job).phase if job is not None else None
        if job is None and draft.phase == Phase.SUCCEEDED:
            known = draft.status.job
            if known is not None and known.hash == wanted.manifests.job_hash:
                return Step()
        running = state is JobPhase.ACTIVE
        blocked = await provide_claims(self._cluster, draft, wanted, running=running)
        if blocked and job is not None and running:
            return Held(job, blocked.seconds)
        if edited:
            # While a claim is missing too: the status is about to forget what the run lay on.
            tell_edited_count(draft, lay_on, wanted.plan.world_size)
        if blocked:
            return Step(again=blocked.seconds)
        if job is not None and same and state is not JobPhase.FAILED:
            told_prepared(draft, wanted)
            return job
        if job is not None:
            self._poller.forget(draft.key)
            part(draft)
            draft.clear(Condition.FAILED, Condition.SUCCEEDED)
            draft.set(phase=Phase.STARTING)
            draft.tell(Condition.RUNNING, False, "JobReplaced", "the recipe changed: the job is made anew")
            if not deleting(job):
                # Before the status says that this generation is dealt with: a restart must find it undone.
                await self._cluster.delete(JOBS, job)
            return Step(again=SOON)
        if edited and draft.phase == Phase.FAILED:
            part(draft)
            draft.clear(Condition.FAILED)
        if blocked := await provide_data(self._cluster, self._nodes, draft, wanted, edited=edited):
            return Step(again=blocked.seconds)
        made = await provide_job(self._cluster, self._nodes, draft, wanted)
        return Step(again=made.seconds) if isinstance(made, Blocked) else made

    async def _suspend(self, draft: Draft, job: Object | None) -> Step:
        self._poller.forget(draft.key)
        part(draft)
        draft.set_recovery(elastic=None)
        draft.clear(Condition.FAILED)
        draft.set(phase=Phase.SUSPENDED)
        if job is not None:
            draft.tell(Condition.RUNNING, False, "Suspended", "pods are ending")
            return Step(again=SOON, delete_job=None if deleting(job) else job)
        left = await role_pods(self._cluster, draft, ROLE_TRAINER)
        await give_up(self._cluster, self._nodes, left, draft.now)
        draft.tell(
            Condition.RUNNING,
            False,
            "Suspended",
            f"{len(left)} pods are ending" if left else "no pod is left",
        )
        return Step(again=SOON if left else None)

    async def _follow(self, draft: Draft, job: Object) -> Step:
        adopt(draft, job)
        uid = job["metadata"]["uid"]
        pods = [pod for pod in await role_pods(self._cluster, draft, ROLE_TRAINER) if owned_by(pod, uid)]
        pods.sort(key=pytorchjob.node_rank)
        nodes = await self._nodes.of(pods, draft.now)
        reading, ends = self._poller.reading(draft.key), dict(self._ends.get(draft.key, {}))
        scene = Scene(job, pods, reading, ends, nodes=nodes)
        if scene.state.phase is JobPhase.ACTIVE and len(pods) < scene.size:
            selector = f"involvedObject.uid={uid},type=Warning"
            scene.events.extend(await self._cluster.find(EVENTS, draft.key.namespace, fields=selector))
        if new := newcomers(draft.recovery, scene):
            since = draft.recovery.pods_as_of or ""
            scene.ends.update(await ends_from_events(self._cluster, scene, new, since))
        follow(draft, scene)
        step = Step()
        if draft.phase not in (Phase.SUCCEEDED, Phase.FAILED):
            self._poller.watch(draft.key, scene.targets())
            step = await self._recover(draft, scene)
        if draft.phase in (Phase.SUCCEEDED, Phase.FAILED):
            self._poller.forget(draft.key)
        return step

    async def _recover(self, draft: Draft, scene: Scene) -> Step:
        if (step := unfinished(draft, scene)) is not None:
            return step
        limits = limits_of(draft)
        rooms = await self._rooms.look(draft, scene, limits)
        decision = decide(observation(draft, scene, limits, rooms))
        if isinstance(decision, Avoid):
            await self._cordon(draft, decision.nodes)
        step = carry_out(draft, scene, decision)
        if not isinstance(decision, Wait):
            return step
        looks = [seconds for seconds in (decision.seconds, _next_look(draft, scene)) if seconds is not None]
        return Step(again=min(looks, default=None))

    async def _cordon(self, draft: Draft, nodes: tuple[str, ...]) -> None:
        """Before the status knows of them: a restarted operator comes here again."""
        known = await self._sources.known()
        for node in nodes if known.platform.bad_nodes.cordon else ():
            try:
                await self._cluster.cordon(node)
            except ApiError as error:
                if not error.not_found and not error.refused:
                    raise
                log.warning("%s: node %s not cordoned: %s", draft.key, node, error)


def _lies_on(draft: Draft, job: Object | None) -> int | None:
    """Accelerators of the run's job, or of one that went at a look that was never written down."""
    if job is not None:
        scene = Scene(job, [], None)
        return scene.size * scene.per_node
    unsaid = draft.status.job is not None and draft.recovery.outgoing_job is None
    return draft.status.plan.world_size if unsaid and draft.status.plan is not None else None


def _next_look(draft: Draft, scene: Scene) -> float | None:
    """Seconds until pods are looked at that nothing may be heard of; None while the run trains."""
    if scene.all_run() and scene.heard():
        return None
    condition = draft.condition(Condition.RUNNING)
    young = condition is None or draft.now - (seconds(condition.last_transition_time) or 0.0) < 60
    if not young:
        return PATIENT_LOOK
    return SOON if scene.all_run() else STARTING_LOOK

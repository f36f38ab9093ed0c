"""From what is seen to what is done about it: the decision, written into the status before it is acted on.

No I/O. Whatever a step does not get done, because the operator died, the next look finds undone.
"""

from pydantic import ValidationError

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.recipe import RecoverySpec
from megatron_operator.api.status import RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.controller.actions import Step
from megatron_operator.controller.capacity_finder import Rooms
from megatron_operator.controller.children import SOON
from megatron_operator.controller.node_reader import node_of
from megatron_operator.lifecycle import (
    Avoid,
    Decision,
    Fail,
    ForceDelete,
    Heartbeat,
    History,
    Limits,
    Observation,
    ReleaseNodes,
    Replaced,
    Resize,
    RestartGang,
    appeared,
    gang_restarted,
    node_lost,
    pod_end,
    resized,
    resized_by_hand,
)
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.pod_termination import left_early, short_name
from megatron_operator.lifecycle.snapshot import Scene
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.lifecycle.status_update import REASONS
from megatron_operator.manifests.node_avoidance import avoided, avoided_by
from megatron_operator.manifests.pytorchjob import JobPhase


def limits_of(draft: Draft) -> Limits:
    """The recipe's own limits, defaults while what it says is refused."""
    try:
        return Limits.of(RecoverySpec.model_validate(draft.spec.get("recovery") or {}))
    except ValidationError:
        return Limits.of(RecoverySpec())


def observation(draft: Draft, scene: Scene, limits: Limits, rooms: Rooms) -> Observation:
    """What recovery looks at."""
    heartbeat = None
    if scene.reading is not None:
        report = scene.reading.report
        heartbeat = Heartbeat(
            phase=str(report.get("phase")),
            iteration=report.get("iteration"),
            step_seconds=report.get("stepSeconds"),
            answered=scene.reading.answered,
            moved=seconds(draft.progress.time),
            unmoved=scene.reading.unmoved,
        )
    recovery = draft.recovery
    return Observation(
        now=draft.now,
        size=scene.size,
        pods=scene.views(draft.now),
        heartbeat=heartbeat,
        history=History(
            run_id=draft.uid,
            restarts_since_checkpoint=recovery.restarts_since_checkpoint,
            last_restart=seconds(recovery.last_restart_time),
            last_cause=recovery.last_cause,
            first_cause=recovery.first_cause,
            last_resize=seconds(recovery.last_resize_time),
            node_failures=recovery.node_failures,
            avoided=frozenset(recovery.nodes_avoided),
        ),
        limits=limits,
        ended=scene.state.phase is not JobPhase.ACTIVE,
        left_early=scene.left_early(),
        waiting_since=seconds(recovery.waiting_since),
        capacity=rooms.capacity,
        releasable=rooms.releasable,
    )


def unfinished(draft: Draft, scene: Scene) -> Step | None:
    """What was decided at an earlier look and is not done yet."""
    recovery = draft.recovery
    if recovery.outgoing_job == scene.job["metadata"]["uid"]:
        return Step(again=SOON, delete_job=scene.job)
    if recovery.restart_before is not None and recovery.pods_as_of is None:
        before = recovery.restart_before
        old = [pod for pod in scene.staying if pod["metadata"]["creationTimestamp"] <= before]
        if old:
            return Step(again=SOON, delete_pods=old)
    if scene.state.phase is not JobPhase.ACTIVE:
        return None
    if early := [pod for pod in scene.staying if left_early(pod)]:
        # The training-operator takes them for done and would never replace them.
        return Step(again=SOON, delete_pods=early)
    wanted = frozenset(recovery.nodes_avoided)
    if avoided(scene.job) != wanted:
        return Step(again=SOON, keep_off=(scene.job, wanted))
    outdated = [pod for pod in scene.unplaced() if avoided_by(pod) != wanted]
    misplaced = [pod for pod in scene.staying if node_of(pod) in wanted] if unrecovered(recovery) else []
    if not (outdated or misplaced):
        return None
    # They replace pods that the operator takes away for their own good: no restart is counted.
    draft.set_recovery(pods_as_of=None, gang=None, restart_before=None)
    return Step(again=SOON, delete_unbound=outdated, delete_pods=misplaced)


def carry_out(draft: Draft, scene: Scene, decision: Decision) -> Step:
    """Write the decision down, and tell what is left to do."""
    match decision:
        case Fail(cause):
            draft.fail("RestartsSpent", cause)
            return Step(delete_job=scene.job)
        case RestartGang(cause):
            _restart_gang(draft, scene, cause)
            if scene.state.phase is JobPhase.ACTIVE:
                return Step(again=SOON, delete_pods=scene.staying)
            # The training-operator makes no pod for a job that has ended.
            draft.set_recovery(outgoing_job=scene.job["metadata"]["uid"])
            return Step(again=SOON, delete_job=scene.job)
        case ForceDelete(names, cause):
            return _force_delete(draft, scene, names, cause)
        case Avoid(nodes, _, cause):
            # Pods that are on them move at the next look, if the run has not come back by then.
            return _keep_off(draft, scene, frozenset(draft.recovery.nodes_avoided) | set(nodes), cause)
        case ReleaseNodes(nodes, cause):
            failures = {n: c for n, c in draft.recovery.node_failures.items() if n not in nodes}
            draft.set_recovery(node_failures=failures)
            return _keep_off(draft, scene, frozenset(draft.recovery.nodes_avoided) - set(nodes), cause)
        case Resize(count, cause):
            return _resize(draft, scene, count, cause)
        case _:
            return Step(again=decision.seconds)


def tell_incidents(draft: Draft, before: RecoveryStatus) -> None:
    """An Event for each incident that is new, or that is known better now."""
    known = {each.number: each.kind for each in before.history}
    new = {each.number for each in appeared(before, draft.recovery)}
    for each in draft.recovery.history:
        if each.kind in REASONS and (each.number in new or known.get(each.number, each.kind) != each.kind):
            where = f" (on {each.node})" if each.node and each.node not in each.cause else ""
            draft.notice(REASONS[each.kind], f"{each.cause}{where}", warning=True)


def tell_edited_count(draft: Draft, before: int | None, count: int) -> None:
    """An incident for a run that an edit lays out on `count` accelerators, which lay on `before`.

    Told from what the status says of the job and the plan until both are written anew, so once.
    """
    if before is None or before == count or draft.phase in (Phase.FAILED, Phase.SUCCEEDED):
        return
    cause = f"accelerator.count was edited: {before} before, {count} now"
    draft.set(recovery=resized_by_hand(draft.recovery, cause, draft.now, iteration=draft.progress.iteration))
    draft.notice(_direction(before, count), f"laid out on {count} accelerators: {cause}")


def _direction(before: int, count: int) -> str:
    return "Shrunk" if count < before else "Grown"


def _restart_gang(draft: Draft, scene: Scene, cause: str) -> None:
    """All pods are to go, written down before the first one does: a restarted operator goes on with it."""
    recovery = gang_restarted(
        draft.recovery,
        cause,
        draft.now,
        checkpoint=draft.checkpoint.iteration,
        iteration=draft.progress.iteration,
    )
    draft.set(recovery=recovery)
    draft.set_recovery(
        pods_as_of=None,
        gang=None,
        restart_before=max(pod["metadata"]["creationTimestamp"] for pod in scene.pods),
    )
    _stopped(draft, "GangRestarted", cause)


def _force_delete(draft: Draft, scene: Scene, names: tuple[str, ...], cause: str) -> Step:
    pods = scene.named(names)
    lost = [Replaced(short_name(pod, scene.name), pod_end(pod, scene.name)) for pod in pods]
    recovery = node_lost(draft.recovery, lost, cause, draft.now, iteration=draft.progress.iteration)
    draft.set(recovery=recovery)
    return Step(again=SOON, force_delete=pods)


def _keep_off(draft: Draft, scene: Scene, nodes: frozenset[str], cause: str) -> Step:
    before = frozenset(draft.recovery.nodes_avoided)
    draft.set_recovery(nodes_avoided=sorted(nodes))
    if new := sorted(nodes - before):
        draft.notice("NodeAvoided", f"{', '.join(new)}: {cause}", warning=True)
    if again := sorted(before - nodes):
        draft.notice("NodeReleased", f"{', '.join(again)}: {cause}")
    return Step(again=SOON, keep_off=(scene.job, nodes))


def _resize(draft: Draft, scene: Scene, count: int, cause: str) -> Step:
    asked = int(draft.spec["accelerator"]["count"])
    recovery = resized(draft.recovery, count, asked, cause, draft.now, iteration=draft.progress.iteration)
    draft.set(recovery=recovery)
    draft.set_recovery(outgoing_job=scene.job["metadata"]["uid"])
    reason = _direction(scene.size * scene.per_node, count)
    draft.notice(reason, f"laid out on {count} accelerators: {cause}")
    _stopped(draft, reason, cause)
    return Step(again=SOON, delete_job=scene.job)


def _stopped(draft: Draft, reason: str, cause: str) -> None:
    draft.set(phase=Phase.RECOVERING)
    draft.tell(Condition.RECOVERING, True, reason, cause)
    draft.tell(Condition.RUNNING, False, reason, cause)

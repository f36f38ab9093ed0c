"""What the status says of a job that runs: replaced pods, obstacles, its end. No I/O."""

from typing import Any, Final

from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.status import RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle import PodEnd, Replaced, checkpoint_saved, pod_end, pods_replaced, trained
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.pod_diagnosis import WITHOUT_PLACE, Diagnosis, diagnose
from megatron_operator.lifecycle.pod_termination import last_words, short_name
from megatron_operator.lifecycle.progress_report import TRAINING_PHASES, absorb, display
from megatron_operator.lifecycle.snapshot import Scene
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests.metadata import digest
from megatron_operator.manifests.pytorchjob import JobPhase

REASONS: Final = {
    "rank": "RankRestarted",
    "pod": "PodsReplaced",
    "node": "NodeLost",
    "gang": "GangRestarted",
    "hang": "HangFound",
    "loss": "LossRolledBack",
}
"""Of the condition Recovering and of Events, by kind of incident; a resize says Shrunk or Grown itself."""


def follow(draft: Draft, scene: Scene) -> None:
    """Bring the status up to what is seen."""
    reached = draft.progress.iteration
    absorb(draft, scene)
    state = scene.state
    if (early := scene.left_early()) is not None:
        draft.tell(Condition.RUNNING, False, "LeftEarly", early)
    elif state.phase is JobPhase.SUCCEEDED:
        _succeed(draft, scene)
    elif state.phase is JobPhase.FAILED:
        draft.fail("JobFailed", _culprit(scene) or state.message or "the training job failed")
    elif state.phase is JobPhase.SUSPENDED:
        queue = scene.job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        waiting = f"waits for admission by queue {queue}" if queue else "the job is suspended"
        draft.set(phase=Phase.PENDING)
        draft.set_recovery(waiting_since=None)
        draft.tell(Condition.RUNNING, False, "Queued", waiting)
    else:
        draft.set(recovery=checkpoint_saved(draft.recovery, draft.checkpoint.iteration))
        count_replacements(draft, scene, reached)
        _show_pods(draft, scene)


def newcomers(recovery: RecoveryStatus, scene: Scene) -> list[dict[str, Any]]:
    """Pods that took the place of others: younger than any that was there when the gang was whole."""
    staying = scene.staying
    if recovery.pods_as_of is None:
        return []
    fresh = [pod for pod in staying if pod["metadata"]["creationTimestamp"] > recovery.pods_as_of]
    gang = _gang(scene)
    if not fresh and gang is not None and recovery.gang not in (None, gang):
        # Replaced within the second in which the others were made, which the API server's times do not tell.
        return [pod for pod in staying if pod["metadata"]["name"] in scene.ends][:1] or staying[-1:]
    return fresh


def count_replacements(draft: Draft, scene: Scene, reached: int | None) -> None:
    """Count pods that took the place of others, once each; `reached` is the iteration known before this look.

    The pods may have come together again by now, so what they say is of the time after.
    """
    recovery, staying, gang = draft.recovery, scene.staying, _gang(scene)
    if not staying:
        return
    newest = max(pod["metadata"]["creationTimestamp"] for pod in staying)
    if recovery.pods_as_of is None:
        old = [p for p in staying if p["metadata"]["creationTimestamp"] <= (recovery.restart_before or "")]
        if gang is not None and not old:
            draft.set_recovery(pods_as_of=newest, gang=gang)
        return
    fresh = newcomers(recovery, scene)
    if not fresh:
        if gang is not None and recovery.gang is None:
            draft.set_recovery(gang=gang)
        return
    replaced = [
        Replaced(short_name(pod, scene.name), scene.ends.get(pod["metadata"]["name"])) for pod in fresh
    ]
    counted = pods_replaced(
        recovery,
        replaced,
        draft.now,
        checkpoint=draft.checkpoint.iteration,
        iteration=reached,
    )
    draft.set(recovery=counted.model_copy(update={"pods_as_of": newest, "gang": gang}))


def _gang(scene: Scene) -> str | None:
    """Which pods the whole gang is made of; None while one is missing."""
    uids = sorted(pod["metadata"]["uid"] for pod in scene.staying)
    return digest(uids) if len(uids) == scene.size else None


def _show_pods(draft: Draft, scene: Scene) -> None:
    if scene.finishing():
        return
    _show_incident(draft)
    found = diagnose(scene.staying, scene.events, scene.name)
    _note_waiting(draft, scene, found)
    if not scene.all_run():
        ran = draft.is_true(Condition.RUNNING)
        obstacle = found or _incomplete(scene)
        draft.tell(Condition.RUNNING, False, obstacle.reason, obstacle.message)
        if ran and not draft.is_true(Condition.RECOVERING):
            draft.tell(Condition.RECOVERING, True, "PodsLost", _present_cause(scene) or obstacle.message)
        recovering = draft.is_true(Condition.RECOVERING)
        draft.set(phase=Phase.RECOVERING if recovering else Phase.STARTING)
        return
    if scene.reading is None or not scene.heard():
        _show_silent(draft)
        return
    report = scene.reading.report
    phase = str(report.get("phase"))
    if phase in TRAINING_PHASES and _gets_on(draft):
        draft.tell(Condition.RUNNING, True, "Training", "")
        draft.set(recovery=trained(draft.recovery, draft.now, resumed_from=report.get("resumedFrom")))
        _recovered(draft)
        draft.set(phase=Phase.TRAINING)
        return
    recovering = draft.is_true(Condition.RECOVERING)
    draft.tell(Condition.RUNNING, True, "PodsRunning", f"all pods run; phase {phase}")
    draft.set(phase=Phase.RECOVERING if recovering else Phase.STARTING)


def _show_incident(draft: Draft) -> None:
    """What the run has not come back from yet, whoever told it."""
    open_ = unrecovered(draft.recovery)
    if open_ is not None and open_.kind in REASONS:
        draft.tell(Condition.RECOVERING, True, REASONS[open_.kind], open_.cause)


def _note_waiting(draft: Draft, scene: Scene, found: Diagnosis | None) -> None:
    """Remember since when pods have had no place; they have one when the whole gang is bound."""
    if scene.bound_at() is not None:
        draft.set_recovery(waiting_since=None)
    elif draft.recovery.waiting_since is None and found is not None and found.reason in WITHOUT_PLACE:
        draft.set_recovery(waiting_since=timestamp(draft.now))


def _gets_on(draft: Draft) -> bool:
    """Whether an iteration was done since the last incident: pods that survived it may not know of it yet."""
    open_, progress = unrecovered(draft.recovery), draft.progress
    if open_ is None:
        return True
    moved = (seconds(progress.time) or 0.0) >= (seconds(open_.time) or 0.0)
    return moved and progress.iteration != open_.iteration


def _show_silent(draft: Draft) -> None:
    """All pods run and were not heard yet: they are new, or the operator is, or they are out of reach."""
    never_heard = draft.progress.iteration is None
    if never_heard:
        draft.set(recovery=trained(draft.recovery, draft.now, resumed_from=None))
        _recovered(draft)
    recovering = draft.is_true(Condition.RECOVERING)
    if draft.phase == Phase.TRAINING and not recovering and not never_heard:
        return
    draft.tell(Condition.RUNNING, True, "PodsRunning", "all pods run; no progress is known yet")
    draft.set(phase=Phase.RECOVERING if recovering else Phase.STARTING)


def _recovered(draft: Draft) -> None:
    if draft.is_true(Condition.RECOVERING):
        draft.tell(Condition.RECOVERING, False, "Recovered", draft.recovery.last_cause or "")


def _incomplete(scene: Scene) -> Diagnosis:
    running = sum(pod.get("status", {}).get("phase") == "Running" for pod in scene.staying)
    return Diagnosis("PodsStarting", f"{running} of {scene.size} pods run")


def _present_cause(scene: Scene) -> str | None:
    return _first_cause([*scene.ends.values(), *(pod_end(pod, scene.name) for pod in scene.pods)])


def _first_cause(ends: list[PodEnd | None]) -> str | None:
    """The one that began it: whoever only lost a peer did not."""
    known = sorted((end for end in ends if end is not None), key=lambda end: not end.own_fault)
    return known[0].cause if known else None


def _culprit(scene: Scene) -> str | None:
    """Why the job failed: the pod whose exit code is one that is not tried again."""
    ends = [end for pod in scene.pods if (end := pod_end(pod, scene.name)) is not None]
    ends += scene.ends.values()
    final = [end for end in ends if end.exit_code is not None and 0 < end.exit_code < 128]
    return _first_cause([*final, *ends])


def _succeed(draft: Draft, scene: Scene) -> None:
    words = next((said for pod in scene.pods if (said := last_words(pod))), {})
    total = draft.progress.train_iters or (draft.status.plan.train_iters if draft.status.plan else None)
    # A trainer ends well only after its last iteration; what it last reported may be the one before.
    iteration = total or words.get("iteration") or draft.progress.iteration
    update = {"iteration": iteration, "display": display(iteration, total), "eta": None}
    draft.set(progress=draft.progress.model_copy(update=update))
    if words.get("checkpointIteration") is not None:
        newest = {"iteration": words["checkpointIteration"]}
        draft.set(checkpoint=draft.checkpoint.model_copy(update=newest))
    told = draft.is_true(Condition.SUCCEEDED)
    draft.set(phase=Phase.SUCCEEDED)
    draft.set(recovery=trained(draft.recovery, draft.now, resumed_from=_resumed_from(scene)))
    message = "" if iteration is None else f"all {iteration} iterations are done"
    draft.tell(Condition.RUNNING, False, "Succeeded", message)
    _recovered(draft)
    draft.tell(Condition.SUCCEEDED, True, "Succeeded", message)
    if not told:
        draft.notice("Succeeded", message or "the run is done")


def _resumed_from(scene: Scene) -> int | None:
    return None if scene.reading is None else scene.reading.report.get("resumedFrom")

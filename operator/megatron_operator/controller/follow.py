"""What the status says of a job that runs: progress, restarts, obstacles, its end. No I/O."""

from megatron_operator.api.names import Condition, Phase
from megatron_operator.api.status import Progress
from megatron_operator.controller.diagnosis import Diagnosis, diagnose
from megatron_operator.controller.draft import Draft, seconds, timestamp
from megatron_operator.controller.scene import Scene
from megatron_operator.manifests.identity import digest
from megatron_operator.manifests.pytorchjob import JobPhase
from megatron_operator.recovery import Heartbeat, History, Limits, Observation
from megatron_operator.recovery.cause import PodEnd, last_words, pod_end

TRAINING_PHASES = frozenset({"training", "saving", "evaluating"})


def follow(draft: Draft, scene: Scene) -> None:
    """Bring the status up to what is seen."""
    absorb_progress(draft, scene)
    state = scene.state
    if state.phase is JobPhase.SUCCEEDED:
        _succeed(draft, scene)
    elif state.phase is JobPhase.FAILED:
        draft.fail("JobFailed", _culprit(scene) or state.message or "the training job failed")
    elif state.phase is JobPhase.SUSPENDED:
        queue = scene.job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        waiting = f"waits for admission by queue {queue}" if queue else "the job is suspended"
        draft.set(phase=Phase.PENDING)
        draft.tell(Condition.RUNNING, False, "Queued", waiting)
    else:
        count_replacements(draft, scene)
        _show_pods(draft, scene)


def absorb_progress(draft: Draft, scene: Scene) -> None:
    """Take in what pods said, and how many iterations a start from the checkpoint threw away."""
    reading = scene.reading
    if reading is None or not scene.pods:
        return
    report, old = reading.report, draft.progress
    generation, resumed = report.get("generation"), report.get("resumedFrom")
    if report.get("checkpointIteration") is not None:
        draft.set(
            checkpoint=draft.checkpoint.model_copy(
                update={"iteration": report["checkpointIteration"], "time": report.get("checkpointTime")}
            )
        )
    if reading.rank_restarts > draft.recovery.rank_restarts:
        draft.set_recovery(rank_restarts=reading.rank_restarts)
    if generation is None:
        return
    anew = old.generation is not None and generation != old.generation
    if anew and old.iteration is not None:
        lost = max(0, old.iteration - (resumed or 0))
        if lost:
            draft.set_recovery(lost_iterations=draft.recovery.lost_iterations + lost)
    iteration = report.get("iteration")
    if anew and report.get("phase") not in TRAINING_PHASES:
        iteration = resumed or 0
    if (iteration, generation) == (old.iteration, old.generation):
        return
    step, total = report.get("stepSeconds"), report.get("trainIters")
    eta = None
    if step and total and iteration is not None:
        eta = timestamp(draft.now + step * max(0, total - iteration))
    draft.set(
        progress=Progress(
            iteration=iteration,
            train_iters=total,
            lm_loss=_short(report.get("lmLoss")),
            learning_rate=_short(report.get("learningRate")),
            step_seconds=_short(step),
            tokens_per_second=_short(report.get("tokensPerSecond")),
            tflops_per_gpu=_short(report.get("tflopsPerGpu")),
            eta=eta,
            display=_display(iteration, total),
            generation=generation,
            time=timestamp(draft.now),
        )
    )


def count_replacements(draft: Draft, scene: Scene) -> None:
    """Notice pods that took the place of others: younger than any that was there when the gang was whole."""
    recovery, staying = draft.recovery, scene.staying
    if not staying:
        return
    _give_budget_back(draft)
    newest = max(pod["metadata"]["creationTimestamp"] for pod in staying)
    gang = digest(sorted(pod["metadata"]["uid"] for pod in staying)) if len(staying) == scene.size else None
    if recovery.pods_as_of is None:
        old = [p for p in staying if p["metadata"]["creationTimestamp"] <= (recovery.restart_before or "")]
        if gang is not None and not old:
            draft.set_recovery(pods_as_of=newest, gang=gang)
        return
    fresh = [pod for pod in staying if pod["metadata"]["creationTimestamp"] > recovery.pods_as_of]
    if not fresh and gang is not None and recovery.gang not in (None, gang):
        # Replaced within the second in which the others were made, which the API server's times do not tell.
        fresh = [pod for pod in staying if pod["metadata"]["name"] in scene.ends][:1] or staying[-1:]
    if not fresh:
        if gang is not None and recovery.gang is None:
            draft.set_recovery(gang=gang)
        return
    ends = {pod["metadata"]["name"]: scene.ends.get(pod["metadata"]["name"]) for pod in fresh}
    guilty = [end for end in ends.values() if end is None or end.own_fault]
    cause = _first_cause(list(ends.values())) or _replaced(list(ends), scene.name)
    draft.set_recovery(
        restarts=recovery.restarts + len(fresh),
        restarts_since_checkpoint=draft.recovery.restarts_since_checkpoint + len(guilty),
        checkpoint_iteration=draft.checkpoint.iteration,
        last_cause=cause,
        last_restart_time=newest,
        pods_as_of=newest,
        gang=gang,
    )
    draft.tell(Condition.RECOVERING, True, "PodsReplaced", cause)
    draft.notice("PodsReplaced", cause, warning=True)


def observation(draft: Draft, scene: Scene, limits: Limits) -> Observation:
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
        )
    recovery = draft.recovery
    return Observation(
        now=draft.now,
        size=scene.size,
        pods=scene.views(),
        heartbeat=heartbeat,
        history=History(
            draft.uid,
            recovery.restarts_since_checkpoint,
            seconds(recovery.last_restart_time),
            recovery.last_cause,
        ),
        limits=limits,
        ended=scene.state.phase is not JobPhase.ACTIVE,
    )


def record_gang_restart(draft: Draft, scene: Scene, cause: str) -> None:
    """Write down that all pods are to go, before the first one does: a restarted operator goes on with it."""
    recovery = draft.recovery
    draft.set_recovery(
        restarts=recovery.restarts + 1,
        restarts_since_checkpoint=recovery.restarts_since_checkpoint + 1,
        checkpoint_iteration=draft.checkpoint.iteration,
        last_cause=cause,
        last_restart_time=timestamp(draft.now),
        pods_as_of=None,
        gang=None,
        restart_before=max(pod["metadata"]["creationTimestamp"] for pod in scene.pods),
    )
    draft.set(phase=Phase.RECOVERING)
    draft.tell(Condition.RECOVERING, True, "GangRestarted", cause)
    draft.tell(Condition.RUNNING, False, "GangRestarted", cause)
    draft.notice("GangRestarted", cause, warning=True)


def _give_budget_back(draft: Draft) -> None:
    recovery, newest = draft.recovery, draft.checkpoint.iteration
    if recovery.restarts_since_checkpoint and newest is not None:
        known = recovery.checkpoint_iteration
        if known is None or newest > known:
            draft.set_recovery(restarts_since_checkpoint=0, checkpoint_iteration=newest)


def _show_pods(draft: Draft, scene: Scene) -> None:
    if scene.finishing():
        return
    if not scene.all_run():
        ran = draft.is_true(Condition.RUNNING)
        obstacle = diagnose(scene.staying, scene.events, scene.name) or _incomplete(scene)
        draft.tell(Condition.RUNNING, False, obstacle.reason, obstacle.message)
        if ran and not draft.is_true(Condition.RECOVERING):
            draft.tell(Condition.RECOVERING, True, "PodsLost", _present_cause(scene) or obstacle.message)
        recovering = draft.is_true(Condition.RECOVERING)
        draft.set(phase=Phase.RECOVERING if recovering else Phase.STARTING)
        return
    if scene.reading is None or not scene.heard():
        _show_silent(draft)
        return
    phase = str(scene.reading.report.get("phase"))
    if phase in TRAINING_PHASES:
        draft.tell(Condition.RUNNING, True, "Training", "")
        _recovered(draft)
        draft.set(phase=Phase.TRAINING)
        return
    recovering = draft.is_true(Condition.RECOVERING)
    draft.tell(Condition.RUNNING, True, "PodsRunning", f"all pods run; phase {phase}")
    draft.set(phase=Phase.RECOVERING if recovering else Phase.STARTING)


def _show_silent(draft: Draft) -> None:
    """All pods run and were not heard yet: they are new, or the operator is, or they are out of reach."""
    never_heard = draft.progress.iteration is None
    if never_heard:
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


def _replaced(pods: list[str], job: str) -> str:
    return f"{', '.join(name.removeprefix(f'{job}-') for name in pods)}: pod was lost and replaced"


def _culprit(scene: Scene) -> str | None:
    """Why the job failed: the pod whose exit code is one that is not tried again."""
    ends = [end for pod in scene.pods if (end := pod_end(pod, scene.name)) is not None]
    ends += scene.ends.values()
    final = [end for end in ends if end.exit_code is not None and end.exit_code < 128]
    return _first_cause([*final, *ends])


def _succeed(draft: Draft, scene: Scene) -> None:
    words = next((said for pod in scene.pods if (said := last_words(pod))), {})
    total = draft.progress.train_iters or (draft.status.plan.train_iters if draft.status.plan else None)
    # A trainer ends well only after its last iteration; what it last reported may be the one before.
    iteration = total or words.get("iteration") or draft.progress.iteration
    update = {"iteration": iteration, "display": _display(iteration, total), "eta": None}
    draft.set(progress=draft.progress.model_copy(update=update))
    if words.get("checkpointIteration") is not None:
        newest = {"iteration": words["checkpointIteration"]}
        draft.set(checkpoint=draft.checkpoint.model_copy(update=newest))
    told = draft.is_true(Condition.SUCCEEDED)
    draft.set(phase=Phase.SUCCEEDED)
    message = "" if iteration is None else f"all {iteration} iterations are done"
    draft.tell(Condition.RUNNING, False, "Succeeded", message)
    _recovered(draft)
    draft.tell(Condition.SUCCEEDED, True, "Succeeded", message)
    if not told:
        draft.notice("Succeeded", message or "the run is done")


def _short(value: float | None) -> float | None:
    """Five digits, for people; the exact loss of every iteration is in the run's progress file."""
    return None if value is None else float(f"{value:.5g}")


def _display(iteration: int | None, total: int | None) -> str | None:
    return None if iteration is None else f"{iteration}/{total if total is not None else '?'}"

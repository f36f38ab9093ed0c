"""What pods say, taken into the status: progress, checkpoint, incidents, warnings. No I/O."""

import re
from typing import Any, Final

from megatron_operator.api.status import Progress, RunWarning
from megatron_operator.api.times import timestamp
from megatron_operator.controller.node_reader import node_of
from megatron_operator.controller.progress_poller import Reading
from megatron_operator.lifecycle import Place, goodput, reported
from megatron_operator.lifecycle.pod_termination import short_name
from megatron_operator.lifecycle.snapshot import Scene, bound_since
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.manifests import pytorchjob

TRAINING_PHASES: Final = frozenset({"training", "saving", "evaluating"})
_FIGURES: Final = re.compile(r"[0-9.]+")


def absorb(draft: Draft, scene: Scene) -> None:
    """Take in what pods said last; the same again changes nothing."""
    if scene.reading is None or not scene.pods:
        return
    report = scene.reading.report
    if report.get("checkpointIteration") is not None:
        draft.set(
            checkpoint=draft.checkpoint.model_copy(
                update={"iteration": report["checkpointIteration"], "time": report.get("checkpointTime")}
            )
        )
    if scene.reading.rank_restarts > draft.recovery.rank_restarts:
        draft.set_recovery(rank_restarts=scene.reading.rank_restarts)
    _warnings(draft, report)
    _incidents(draft, scene, report)
    if report.get("generation") is not None:
        _progress(draft, report)


def told_goodput(draft: Draft, reading: Reading | None) -> None:
    """Bring the goodput up to date; it moves with the clock, so only where the status is written anyway."""
    if reading is not None and (value := goodput(reading.report, draft.now)) is not None:
        draft.set_recovery(goodput=value)


def display(iteration: int | None, total: int | None) -> str | None:
    """`50/200`."""
    return None if iteration is None else f"{iteration}/{total if total is not None else '?'}"


def _progress(draft: Draft, report: dict[str, Any]) -> None:
    old, generation = draft.progress, report["generation"]
    anew = old.generation is not None and generation != old.generation
    iteration = report.get("iteration")
    if anew and report.get("phase") not in TRAINING_PHASES:
        iteration = report.get("resumedFrom") or 0
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
            display=display(iteration, total),
            generation=generation,
            time=timestamp(draft.now),
        )
    )


def _incidents(draft: Draft, scene: Scene, report: dict[str, Any]) -> None:
    told = report.get("incidents")
    if not told:
        return
    placement = {
        pytorchjob.node_rank(pod): Place(
            short_name(pod, scene.name), node_of(pod), since=bound_since(pod) or 0.0
        )
        for pod in scene.pods
    }
    recovery = reported(
        draft.recovery,
        told,
        placement,
        bound_at=scene.bound_at(),
        checkpoint=draft.checkpoint.iteration,
    )
    draft.set(recovery=recovery)


def _warnings(draft: Draft, report: dict[str, Any]) -> None:
    """A warning whose figures alone change is the same one: it is told once."""
    told = report.get("warnings")
    if told is None:
        return
    said = [
        RunWarning(reason=str(each.get("reason") or "Warning"), message=str(each.get("message") or "")[:400])
        for each in told
    ]
    before = {_gist(each): each for each in draft.status.warnings}
    now = [before.get(_gist(each), each) for each in said]
    for each in now:
        if _gist(each) not in before:
            draft.notice(each.reason, each.message, warning=True)
    draft.set(warnings=now)


def _gist(warning: RunWarning) -> tuple[str, str]:
    return warning.reason, _FIGURES.sub("", warning.message)


def _short(value: float | None) -> float | None:
    """Five digits, for people; the exact loss of every iteration is in the run's progress file."""
    return None if value is None else float(f"{value:.5g}")

"""From the progress that pods report to the status: progress, checkpoint, incidents, warnings."""

import re
from typing import Final

from megatron_contract.progress import ProgressReport
from megatron_contract.termination import TerminationMessage

from megatron_operator.api.status import Evaluation, Progress, RunWarning, ValidationStatus
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.checkpoint_compatibility import contract_after_save
from megatron_operator.lifecycle.measured_memory import merge
from megatron_operator.lifecycle.node_state import node_of
from megatron_operator.lifecycle.observation import PodPhase, PodView
from megatron_operator.lifecycle.pod_termination import short_name
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.reported_incidents import (
    PodPlacement,
    add_reported_incidents,
    goodput,
    precedes_recipe,
)
from megatron_operator.lifecycle.snapshot import RunSnapshot, bound_since
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_size import LARGEST_TOTAL, LONGEST_WARNING, MAX_WARNINGS, cut
from megatron_operator.lifecycle.stragglers import end_stragglers, update_stragglers
from megatron_operator.manifests.job_backend import JobPhase
from megatron_operator.manifests.job_backends import node_rank

TRAINING_PHASES: Final = frozenset({"training", "saving", "evaluating"})
_NUMBERS: Final = re.compile(r"[0-9.]+")


def update_progress(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Copy what pods last reported into the status; the same report again changes nothing."""
    runs = snapshot.job_phase is JobPhase.ACTIVE and any(map(_runs, snapshot.pod_views))
    if not runs:
        end_reports(status)
    if snapshot.reading is None or not snapshot.pods:
        return
    report = snapshot.reading.report
    if runs and snapshot.reading_is_current:
        update_stragglers(status, report, _placement(snapshot))
        _update_warnings(status, report)
    if report.checkpoint_iteration is not None:
        _update_checkpoint(status, report, report.checkpoint_iteration)
        set_best_checkpoint(status, report, certain=report.phase in TRAINING_PHASES)
    _update_validation(status, report)
    if report.memory and (plan := status.current.plan) is not None:
        job = status.current.job.hash if status.current.job is not None else None
        status.set(memory=merge(status.current.memory, report.memory, plan, job))
    _add_incidents(status, snapshot, report)
    _count_rank_restarts(status)
    update_iteration(status, snapshot)


def end_reports(status: StatusBuilder) -> None:
    """Record that no pod runs, so that no rank is slow and no warning lasts."""
    end_stragglers(status)
    status.set(warnings=[])


def _runs(pod: PodView) -> bool:
    return pod.phase is PodPhase.RUNNING and not pod.deleting


def _update_checkpoint(status: StatusBuilder, report: ProgressReport, iteration: int) -> None:
    contract = status.checkpoint.contract
    # A start without a checkpoint has resumed from none.
    if contract and report.generation is not None and iteration > (report.resumed_from or 0):
        contract = contract_after_save(contract)
    newest = {"iteration": iteration, "time": report.checkpoint_time, "contract": contract}
    status.set(checkpoint=status.checkpoint.model_copy(update=newest))


def set_best_checkpoint(
    status: StatusBuilder, reported: ProgressReport | TerminationMessage, *, certain: bool = False
) -> None:
    """Copy which checkpoint is the best, as pods last reported.

    None of a run that keeps none, or no longer has it, counts where it is `certain`: pods that start do not
    know yet.
    """
    if reported.best_checkpoint_iteration is None and not certain:
        return
    loss = _rounded(reported.best_checkpoint_loss)
    best = {"best_iteration": reported.best_checkpoint_iteration, "best_loss": loss}
    status.set(checkpoint=status.checkpoint.model_copy(update=best))


def update_iteration(status: StatusBuilder, snapshot: RunSnapshot) -> None:
    """Copy the iteration that pods last reported into the status, with its loss and speed."""
    reading = snapshot.reading
    if reading is not None and snapshot.pods and reading.report.generation is not None:
        _update_iteration(status, reading)


def reached_iteration(status: StatusBuilder, snapshot: RunSnapshot) -> int | None:
    """The last iteration that the generation in the status is known to have completed.

    The status may be older than what pods have reported since, and new pods may have completed the
    rendezvous by now: then what they report is from after the interruption.
    """
    written, reading = status.progress, snapshot.reading
    if reading is None or written.generation is None:
        return written.iteration
    same = reading.report.generation == written.generation
    live = reading.report.iteration if same else reading.reached
    known = [each for each in (written.iteration, live) if each is not None]
    return max(known, default=None)


def update_goodput(status: StatusBuilder, reading: ProgressReading | None) -> None:
    """Set the goodput. It changes all the time, so it is only set where the status is written anyway.

    Of checkpoints that an earlier recipe of the name began, the part of this one is not known.
    """
    if reading is None:
        return
    started = reading.report.first_started_at
    if started is not None and precedes_recipe(status.body, started):
        return
    if (value := goodput(reading.report, status.now)) is not None:
        status.set_recovery(goodput=value)


def display(iteration: int | None, total: int | None) -> str | None:
    """`50/200`; the total is `?` while it is not known."""
    return None if iteration is None else f"{iteration}/{total if total is not None else '?'}"


def _update_iteration(status: StatusBuilder, reading: ProgressReading) -> None:
    report = reading.report
    old, generation = status.progress, report.generation
    restarted = old.generation is not None and generation != old.generation
    iteration, loss, learning_rate = report.iteration, report.lm_loss, report.learning_rate
    if restarted and report.phase not in TRAINING_PHASES:
        # Pods that load still report the loss of the last iteration before.
        iteration, loss, learning_rate = report.resumed_from or 0, None, None
    step, total = report.step_seconds, report.train_iters
    same = (iteration, total, generation) == (old.iteration, old.train_iters, old.generation)
    if same and (old.lm_loss is not None or loss is None):
        return
    moved = status.now
    if generation == old.generation:
        # The status may be behind: the iteration may have changed some time ago.
        moved = min(moved, reading.answered) - reading.unchanged
    eta = None
    if step and total and iteration is not None:
        eta = timestamp(status.now + step * max(0, total - iteration))
    status.set(
        progress=Progress(
            iteration=iteration,
            train_iters=total,
            lm_loss=_rounded(loss),
            learning_rate=_rounded(learning_rate),
            step_seconds=_rounded(step),
            tokens_per_second=_rounded(report.tokens_per_second),
            tflops_per_gpu=_rounded(report.tflops_per_gpu),
            eta=eta,
            display=display(iteration, total),
            generation=generation,
            time=timestamp(moved),
        )
    )


def _add_incidents(status: StatusBuilder, snapshot: RunSnapshot, report: ProgressReport) -> None:
    own = [each for each in report.incidents if not precedes_recipe(status.body, each.detected_at)]
    if not own:
        return
    recovery = add_reported_incidents(
        status.recovery,
        own,
        _placement(snapshot),
        bound_at=snapshot.all_bound_at,
        checkpoint=status.checkpoint.iteration,
        job_began=snapshot.job_began,
    )
    status.set(recovery=recovery)


def _count_rank_restarts(status: StatusBuilder) -> None:
    """Count the interruptions after which ranks start again inside their pods.

    That of a pod begins again with each new checkpoint. Earlier releases wrote the largest that they saw.
    """
    kinds = status.recovery.restarts_by_kind
    counted = min(kinds.rank + kinds.hang + kinds.loss, LARGEST_TOTAL)
    if counted > status.recovery.rank_restarts:
        status.set_recovery(rank_restarts=counted)


def _placement(snapshot: RunSnapshot) -> dict[int, PodPlacement]:
    return {
        node_rank(pod): PodPlacement(
            short_name(pod, snapshot.name), node_of(pod), since=bound_since(pod) or 0.0
        )
        for pod in snapshot.pods
    }


def _update_validation(status: StatusBuilder, report: ProgressReport) -> None:
    if report.validation_iteration is None or report.validation_loss is None:
        return
    status.set(
        validation=ValidationStatus(
            iteration=report.validation_iteration,
            loss=float(f"{report.validation_loss:.5g}"),
            best_iteration=report.best_validation_iteration,
            best_loss=_rounded(report.best_validation_loss),
            evaluations=[
                Evaluation(iteration=each.iteration, loss=float(f"{each.loss:.5g}"))
                for each in report.evaluations
            ]
            or None,
        )
    )


def _update_warnings(status: StatusBuilder, report: ProgressReport) -> None:
    """A warning in which only numbers change is the same warning and posts no further Event."""
    reported = [
        RunWarning(reason=each.reason, message=cut(each.message, LONGEST_WARNING))
        for each in report.warnings[:MAX_WARNINGS]
    ]
    before = {_without_numbers(each): each for each in status.current.warnings}
    now = [before.get(_without_numbers(each), each) for each in reported]
    for each in now:
        if _without_numbers(each) not in before:
            status.add_event(each.reason, each.message, warning=True)
    status.set(warnings=now)


def _without_numbers(warning: RunWarning) -> tuple[str, str]:
    return warning.reason, _NUMBERS.sub("", warning.message)


def _rounded(value: float | None) -> float | None:
    """Five significant digits, for people; the run's progress file has the exact loss of every iteration."""
    return None if value is None else float(f"{value:.5g}")

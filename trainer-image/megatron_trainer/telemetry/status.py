"""The state of the run that /progress reports, updated by rank events and by the agent."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from megatron_contract.progress import PROGRESS_SCHEMA, ProgressReport, ReportedWarning

from megatron_trainer.secret_values import scrub
from megatron_trainer.telemetry.iteration import METRICS, IterationRecord
from megatron_trainer.telemetry.rank_failure import RankFailure
from megatron_trainer.telemetry.reporter import FINISHING_SAVE
from megatron_trainer.telemetry.run_journal import RunSummary


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Status:
    """The run as this pod knows it. Safe to use from several threads; unknown values are None.

    `train_iters`: iterations of the whole run.
    """

    def __init__(self, node_rank: int, train_iters: int | None) -> None:
        self._lock = threading.Lock()
        self._report = ProgressReport(
            schema=PROGRESS_SCHEMA,
            phase="starting",
            node_rank=node_rank,
            train_iters=train_iters,
            started_at=_now(),
            updated_at=_now(),
        )
        self._step_at: float | None = None
        self._loaded_at: float | None = None
        self._finishing_save = False
        self._failures: dict[int, RankFailure] = {}

    @property
    def report(self) -> ProgressReport:
        """The body of /progress."""
        with self._lock:
            return self._report

    def set(self, **fields: Any) -> None:
        """Set fields of the report, named as in ProgressReport, and `updated_at`."""
        with self._lock:
            self._report = replace(self._report, **fields, updated_at=_now())

    def set_run(self, run: RunSummary) -> None:
        """Set the fields that describe the run as a whole. `updated_at` stays: it is about this pod."""
        with self._lock:
            self._report = replace(
                self._report,
                incidents=run.incidents,
                stragglers=run.stragglers,
                memory=run.memory,
                useful_seconds=run.useful_seconds,
                first_started_at=run.first_started_at,
                save_seconds=run.save_seconds,
                evaluate_seconds=run.evaluate_seconds,
                validation_iteration=run.validation_iteration,
                validation_loss=run.validation_loss,
                best_validation_iteration=run.best_validation_iteration,
                best_validation_loss=run.best_validation_loss,
                evaluations=run.evaluations,
                warnings=self._report.warnings if run.warnings is None else run.warnings,
            )
            if run.checkpoint_iteration is not None:
                self._report = replace(
                    self._report,
                    checkpoint_iteration=run.checkpoint_iteration,
                    checkpoint_time=run.checkpoint_time,
                    best_checkpoint_iteration=run.best_checkpoint_iteration,
                    best_checkpoint_loss=run.best_checkpoint_loss,
                )

    def warn(self, reason: str, message: str | None) -> None:
        """Set the warning of `reason`, without values of Secrets, or clear it with None."""
        with self._lock:
            others = tuple(warning for warning in self._report.warnings if warning.reason != reason)
            new = () if message is None else (ReportedWarning(reason, scrub(message)),)
            self._report = replace(self._report, warnings=others + new)

    def latest_iteration(self) -> IterationRecord | None:
        """Return the last iteration done in this generation, None before the first."""
        with self._lock:
            report = self._report
            if self._step_at is None or report.iteration is None or report.generation is None:
                return None
            metrics = {name: getattr(report, name) for name in METRICS}
            return IterationRecord(report.iteration, report.generation, **metrics, time=self._step_at)

    @property
    def loaded_at(self) -> float | None:
        """When the last rank here that has loaded in this generation was done, Unix seconds."""
        with self._lock:
            return self._loaded_at

    def start_generation(self, generation: int, resumed_from: int | None) -> None:
        """Reset what belongs to a generation; its ranks are about to start, from iteration `resumed_from`."""
        with self._lock:
            self._failures.clear()
            self._loaded_at = self._step_at = None
            self._finishing_save = False
            if self._report.iteration is not None:
                self._report = replace(
                    self._report, iteration=resumed_from or 0, lm_loss=None, learning_rate=None
                )
        self.set(phase="loading", generation=generation, resumed_from=resumed_from)

    def failures(self) -> dict[int, RankFailure]:
        """Return the failures that ranks of this generation reported, by global rank, the first one first."""
        with self._lock:
            return dict(self._failures)

    def apply(self, event: dict[str, Any]) -> None:
        """Apply one event of a rank. Events of an earlier generation are dropped."""
        if event["generation"] != self.report.generation and event["event"] != "failed":
            return
        kind = event["event"]
        if kind == "phase":
            self._finishing_save = False
            self.set(phase=event["phase"])
        elif kind == "busy" and event["doing"] == FINISHING_SAVE and self.report.phase == "training":
            # It may take as long as a save, and not as a step.
            self._finishing_save = True
            self.set(phase="saving")
        elif kind in ("busy", "pulse"):
            self.set()
        elif kind == "saved" or (kind == "free" and self._finishing_save):
            self._finishing_save = False
            self.set(phase="training")
        elif kind == "iteration":
            self.set_iteration(IterationRecord.from_json(event))
        elif kind == "loaded":
            with self._lock:
                self._loaded_at = max(event["time"], self._loaded_at or 0.0)
        elif kind == "failed":
            with self._lock:
                self._failures[event["rank"]] = RankFailure.from_json(event)

    def set_iteration(self, record: IterationRecord) -> None:
        """Set the metrics of an iteration, from a rank here or, through the store, from another pod.

        The latter may come when the ranks here already save or evaluate after it.
        """
        with self._lock:
            report = self._report
            newest = report.iteration
            if newest is not None and record.iteration < newest and report.phase == "training":
                return
            metrics = {name: getattr(record, name) for name in METRICS}
            known = {name: value for name, value in metrics.items() if value is not None}
            if record.iteration != newest and record.lm_loss is None:
                known["lm_loss"] = None
            after = record.iteration == newest and report.phase in ("saving", "evaluating")
            phase = report.phase if after else "training"
            self._report = replace(
                report, **known, iteration=record.iteration, phase=phase, updated_at=_now()
            )
            self._step_at = record.time

    def set_checkpoint(self, iteration: int | None, written: float | None) -> None:
        """Set the newest complete checkpoint and when it was written (Unix seconds)."""
        time = None
        if written is not None:
            time = datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.set(checkpoint_iteration=iteration, checkpoint_time=time)

    def set_best_checkpoint(self, iteration: int | None, loss: float | None) -> None:
        """Set the complete checkpoint with the lowest validation loss, and that loss."""
        with self._lock:
            self._report = replace(
                self._report, best_checkpoint_iteration=iteration, best_checkpoint_loss=loss
            )

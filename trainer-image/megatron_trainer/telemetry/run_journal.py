"""The journal of a run, kept by node 0: when it started, what interrupted it, how much time was useful.

It is stored beside the checkpoints, so that it outlives the pod. Without a save directory it is kept in
memory only.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megatron_contract.environment import JOURNAL_FILE, JOURNAL_SCHEMA, PROGRESS_FILE, VALIDATION_FILE
from megatron_contract.incident import ReportedIncident
from megatron_contract.limits import MAX_INCIDENTS
from megatron_contract.progress import (
    ReportedEvaluation,
    ReportedMemory,
    ReportedStraggler,
    ReportedWarning,
)
from megatron_contract.wire import Message, load_json

from megatron_trainer.telemetry.incidents import FailureReport, new_incident
from megatron_trainer.telemetry.iteration import IterationRecord
from megatron_trainer.telemetry.progress_log import ProgressLog
from megatron_trainer.telemetry.validation_log import ValidationLog


@dataclass(frozen=True, slots=True)
class RunSummary(Message):
    """The fields of /progress that describe the run as a whole; node 0 shares them with all pods."""

    incidents: tuple[ReportedIncident, ...]
    useful_seconds: float
    first_started_at: float
    """Unix seconds."""
    warnings: tuple[ReportedWarning, ...] | None = None
    """Those of node 0; None leaves a pod's own."""
    checkpoint_iteration: int | None = None
    """The newest complete checkpoint, which node 0 alone checks; None leaves what a pod knows."""
    checkpoint_time: str | None = None
    save_seconds: float | None = None
    evaluate_seconds: float | None = None
    validation_iteration: int | None = None
    validation_loss: float | None = None
    best_validation_iteration: int | None = None
    best_validation_loss: float | None = None
    best_checkpoint_iteration: int | None = None
    """As for checkpoint_iteration."""
    best_checkpoint_loss: float | None = None
    stragglers: tuple[ReportedStraggler, ...] = ()
    memory: tuple[ReportedMemory, ...] = ()
    evaluations: tuple[ReportedEvaluation, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stored(Message):
    """The typed part of the journal file; `pending` and `policy` are read as they are."""

    first_started_at: float | None = None
    generation: int = 0
    incidents: tuple[ReportedIncident, ...] = ()


class RunJournal:
    """What node 0 knows of the whole run. Times are Unix seconds. Safe in several threads.

    `policy` is the memory of the retry policy, written with the rest. `generation` is the last one that
    started, 0 before the first; it counts on when all pods are replaced. Raises OSError if the files cannot
    be read now: the next `write` would lose what they hold.
    """

    def __init__(self, save: Path | None, log: Callable[[str], None]) -> None:
        self._path = None if save is None else save / JOURNAL_FILE
        self._log = log
        self._lock = threading.RLock()
        self._progress_log = ProgressLog(None if save is None else save / PROGRESS_FILE)
        self._validation_log = ValidationLog(None if save is None else save / VALIDATION_FILE)
        stored, self._pending, self.policy = self._read()
        self._incidents: list[ReportedIncident] = list(stored.incidents)
        self._progress_log.read_new()
        self._first_started_at = stored.first_started_at or self._progress_log.started_at or time.time()
        last = self._progress_log.last
        self.generation = max(stored.generation, last.generation if last else 0)

    def _read(self) -> tuple[_Stored, FailureReport | None, dict[str, Any]]:
        try:
            value: Any = load_json(self._path.read_bytes()) if self._path else {}
            pending = value.get("pending")
            return (
                _Stored.from_json(value),
                None if pending is None else FailureReport.from_json(pending),
                dict(value.get("policy", {})),
            )
        except FileNotFoundError:
            pass
        except (PermissionError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._log(f"cannot read {self._path}, earlier incidents are lost: {error}")
        return _Stored(), None, {}

    def write(self) -> None:
        """Replace the file atomically. An error is logged: a full volume does not stop the run here."""
        with self._lock:
            if self._path is None:
                return
            temporary = self._path.with_name(f".{JOURNAL_FILE}.{os.getpid()}")
            stored = _Stored(self._first_started_at, self.generation, tuple(self._incidents))
            value = {
                "schema": JOURNAL_SCHEMA,
                **stored.to_json(),
                "pending": self._pending.to_json() if self._pending else None,
                "policy": self.policy,
            }
            try:
                temporary.write_text(json.dumps(value))
                temporary.replace(self._path)
            except OSError as error:
                self._log(f"cannot write {self._path}: {error}")

    def set_pending(self, report: FailureReport) -> None:
        """Store why this pod ends, for its replacement, which finds no store to read it from."""
        self._pending = report
        self.write()

    @property
    def pending(self) -> FailureReport | None:
        """Why the previous pod of node 0 ended, until a generation starts."""
        return self._pending

    @property
    def iteration(self) -> int | None:
        """The last iteration done, by any generation."""
        self._progress_log.read_new()
        return None if self._progress_log.last is None else self._progress_log.last.iteration

    def start_generation(
        self,
        generation: int,
        report: FailureReport | None,
        resumed_from: int | None,
        latest: IterationRecord | None,
        met_at: float,
    ) -> None:
        """Record that `generation` starts because of `report`, once all pods have met and no rank runs.

        `resumed_from`: the iteration from which it resumes; None: the beginning. `latest`: the last iteration
        according to the gang's store, for a run without a progress file. `met_at`: when all pods had met,
        Unix seconds. Raises OSError.
        """
        with self._lock:
            # First what may fail: nothing is recorded then.
            self._progress_log.read_new()
            self._validation_log.discard_after(resumed_from or 0, generation)
            last = self._progress_log.last or latest
            if report is not None:
                # A generation without a step has no step to measure from: the time counts for the incident
                # before.
                idle = bool(self._incidents) and self._incidents[-1].first_step_at is None
                incident = new_incident(
                    generation=generation,
                    report=report,
                    iteration=None if last is None else last.iteration,
                    last_step_at=None if last is None or idle else last.time,
                    resumed_from=resumed_from,
                    met_at=met_at,
                )
                self._incidents = [*self._incidents, incident][-MAX_INCIDENTS:]
            self._progress_log.rewind(resumed_from or 0)
            self.generation = generation
            self._pending = None
            self.write()

    def record_loaded(self, generation: int, at: float) -> None:
        """Record when a rank of this pod had loaded its part of the checkpoint; the last one counts."""
        with self._lock:
            if not self._incidents:
                return
            newest = self._incidents[-1]
            if newest.generation == generation and newest.first_step_at is None:
                self._incidents[-1] = replace(newest, loaded_at=max(at, newest.loaded_at or at))

    def update(self, latest: IterationRecord | None) -> None:
        """Record the iterations done since the last call; `latest` as for `start_generation`."""
        with self._lock:
            records: Sequence[IterationRecord] = []
            # The volume may not respond for a moment, which is no reason to stop the ranks.
            with contextlib.suppress(OSError):
                records = self._progress_log.read_new()
            if self._path is None and latest is not None:
                records = [latest]
            if sum(self._record_step(record) for record in records):
                self.write()

    def _record_step(self, record: IterationRecord) -> bool:
        """Set the times of the newest incident that `record` completes. Returns whether there were any."""
        if not self._incidents or record.generation != self._incidents[-1].generation:
            return False
        before = newest = self._incidents[-1]
        if newest.first_step_at is None:
            newest = replace(newest, first_step_at=record.time)
        if newest.caught_up_at is None and record.iteration > (newest.iteration or 0):
            newest = replace(newest, caught_up_at=record.time)
        self._incidents[-1] = newest
        return newest is not before

    def summary(self) -> RunSummary:
        """Return the fields of /progress that come from the journal."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._validation_log.read_new()
            last, best = self._validation_log.last, self._validation_log.best
            return RunSummary(
                incidents=tuple(self._incidents),
                useful_seconds=round(self._progress_log.useful_seconds, 3),
                first_started_at=self._first_started_at,
                save_seconds=round(self._progress_log.save_seconds, 3),
                evaluate_seconds=round(self._progress_log.evaluate_seconds, 3),
                validation_iteration=None if last is None else last.iteration,
                validation_loss=None if last is None else last.lm_loss,
                best_validation_iteration=None if best is None else best.iteration,
                best_validation_loss=None if best is None else best.lm_loss,
                evaluations=self._validation_log.summary(),
            )

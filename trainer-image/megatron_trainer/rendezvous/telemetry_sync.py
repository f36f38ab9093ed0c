"""Exchanges telemetry between the pods through the gang's store, so that every /progress describes the run.

The pod with the rank that knows the loss shares the iterations, every pod the measured steps of its ranks and
the memory of its fullest ones. Node 0 shares the summary of its run journal, the slow and the fullest ranks,
and the newest checkpoint, which it alone checks.
"""

import json
import threading
import time
from dataclasses import replace

from megatron_contract.progress import ReportedMemory, ReportedStraggler

from megatron_trainer.rendezvous.handler import GangRendezvous
from megatron_trainer.telemetry import peak_memory, step_times
from megatron_trainer.telemetry.iteration import IterationRecord
from megatron_trainer.telemetry.run_journal import RunJournal, RunSummary
from megatron_trainer.telemetry.status import Status
from megatron_trainer.telemetry.stragglers import StragglerDetector

_SYNC_SECONDS = 0.5
_STEP_TIMES_SECONDS = 3.0
# How long the exchange waits for files of the run. A volume may never respond, and the ranks that hang on it
# must be noticed.
_READ_SECONDS = 2.0


class TelemetrySync:
    """This pod's side of the exchange. `journal` is set on node 0 only."""

    def __init__(
        self,
        gang: GangRendezvous,
        status: Status,
        journal: RunJournal | None,
        steps: step_times.StepTimes,
        memory: peak_memory.PeakMemory,
    ) -> None:
        self._gang = gang
        self._status = status
        self._journal = journal
        self._steps = steps
        self._memory = memory
        self._shared: dict[str, str] = {}
        self._steps_at = 0.0
        self._detector = StragglerDetector()
        self._stragglers: tuple[ReportedStraggler, ...] = ()
        self._fullest: tuple[ReportedMemory, ...] = ()
        self._generation = 0
        self._synced_at = 0.0
        self._shared_summary = ""
        self._summary: RunSummary | None = None
        self._reader: threading.Thread | None = None
        self.latest: IterationRecord | None = None
        """The last iteration that was shared or received."""

    def sync(self, at_once: bool = False) -> None:
        """Exchange telemetry, unless `at_once` at most every _SYNC_SECONDS. Raises StoreLostError."""
        now = time.monotonic()
        if not at_once and now - self._synced_at < _SYNC_SECONDS:
            return
        self._synced_at = now
        if self._gang.node_rank == self._gang.nodes - 1:
            self._share_iteration()
        else:
            self._receive_iteration()
        self._sync_ranks(now)
        if self._journal is not None:
            self._share_summary(self._journal)
        elif text := self._gang.store.get("run"):
            self._status.set_run(RunSummary.from_json(json.loads(text)))

    def _share_iteration(self) -> None:
        record = self._status.latest_iteration()
        if record is not None and record != self.latest:
            self.latest = record
            self._gang.share("progress", json.dumps(record.to_json()))

    def _receive_iteration(self) -> None:
        text = self._gang.store.get("progress")
        if text is None:
            return
        record = IterationRecord.from_json(json.loads(text))
        if record.generation == self._gang.generation and record != self.latest:
            self.latest = record
            self._status.set_iteration(record)

    def _sync_ranks(self, now: float) -> None:
        """Share steps and memory of this pod's ranks; on node 0, find the gang's slow and fullest."""
        if self._gang.generation != self._generation:
            self._generation = self._gang.generation
            self._stragglers, self._fullest = (), ()
            self._detector.reset()
        if now - self._steps_at < _STEP_TIMES_SECONDS:
            return
        self._steps_at = now
        self._share("steps", self._steps.dump())
        self._share("memory", self._memory.dump())
        if self._gang.node_rank == 0:
            steps = self._gang.store.children("steps").values()
            self._stragglers = self._detector.update(step_times.load(steps, self._generation), now)
            memory = self._gang.store.children("memory").values()
            self._fullest = peak_memory.load(memory, self._generation)

    def _share(self, name: str, text: str) -> None:
        """Share what this pod has by this name, unless it has shared the same."""
        if text != self._shared.get(name):
            self._gang.share(f"{name}/{self._gang.node_rank}", text)
            self._shared[name] = text

    def _read(self, journal: RunJournal) -> None:
        """Update the journal and its summary on a thread; both stay as they are until the volume responds."""
        if self._reader is not None and self._reader.is_alive():
            return
        generation, loaded_at, latest = self._gang.generation, self._status.loaded_at, self.latest

        def read() -> None:
            if loaded_at is not None:
                journal.record_loaded(generation, loaded_at)
            journal.update(latest)
            self._summary = journal.summary()

        self._reader = threading.Thread(target=read, daemon=True, name="journal")
        self._reader.start()
        self._reader.join(_READ_SECONDS)

    def _share_summary(self, journal: RunJournal) -> None:
        self._read(journal)
        if self._summary is None:
            return
        report = self._status.report
        summary = replace(
            self._summary,
            warnings=report.warnings,
            stragglers=self._stragglers,
            memory=self._fullest,
            checkpoint_iteration=report.checkpoint_iteration,
            checkpoint_time=report.checkpoint_time,
            best_checkpoint_iteration=report.best_checkpoint_iteration,
            best_checkpoint_loss=report.best_checkpoint_loss,
        )
        self._status.set_run(summary)
        text = json.dumps(summary.to_json())
        if text != self._shared_summary:
            self._gang.share("run", text)
            self._shared_summary = text

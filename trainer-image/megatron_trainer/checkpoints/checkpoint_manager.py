"""Manages the checkpoint directory for a pod's launcher: where to start, what to keep, what to report."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from megatron_contract.environment import VALIDATION_FILE
from megatron_contract.exit_codes import ExitCode

from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.best_checkpoint import best_complete
from megatron_trainer.checkpoints.checkpoint_lease import CheckpointLease, LeaseLostError
from megatron_trainer.checkpoints.volume import (
    describe_shortage,
    describe_write_error,
    directory_size,
    is_full,
    names_full,
    probe,
    retry_until_writable,
)
from megatron_trainer.flags import Flags
from megatron_trainer.health.retry_policy import plan_restart
from megatron_trainer.rendezvous.state import GenerationPlan, RunEndedError, State
from megatron_trainer.settings import Settings
from megatron_trainer.telemetry.incidents import FailureReport
from megatron_trainer.telemetry.iteration import IterationRecord
from megatron_trainer.telemetry.run_journal import RunJournal
from megatron_trainer.telemetry.status import Status
from megatron_trainer.telemetry.validation_log import ValidationLog
from megatron_trainer.termination import Ending

_WATCH_SECONDS = 0.5
_MEASURE_SECONDS = 10.0
# Number of checkpoints that the retry policy may choose from.
_CANDIDATES = 4


class CheckpointManager:
    """Manages the directory of --save. `journal` and `lease` exist on node 0 only, `lease` only with --save.

    `interrupted` returns whether this pod must stop. `fenced` is set once another launcher took the lease.
    """

    def __init__(
        self,
        settings: Settings,
        flags: Flags,
        status: Status,
        journal: RunJournal | None,
        lease: CheckpointLease | None,
        interrupted: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._flags = flags
        self._status = status
        self._journal = journal
        self._lease = lease
        self._interrupted = interrupted
        self._log = log
        self._size = 0
        # The iteration whose checkpoint has that size.
        self._sized: int | None = None
        self._low = False
        self._validations = ValidationLog(None if flags.save is None else flags.save / VALIDATION_FILE)
        self._retaining = threading.Lock()
        self.fenced: LeaseLostError | None = None

    def newest(self) -> int | None:
        """Return the iteration of the newest complete checkpoint.

        Node 0 checks all. Another pod takes what node 0 has reported if the tracker names that checkpoint,
        or else checks the one that the tracker names. Raises OSError.
        """
        save, ckpt_format = self._flags.save, self._flags.ckpt_format
        if save is None:
            return None
        if self._lease is None and (text := selection.read_tracker(save) or "").isdecimal():
            iteration = int(text)
            if iteration == self._status.report.checkpoint_iteration:
                return iteration
            if selection.why_incomplete(selection.directory(save, iteration), ckpt_format) is None:
                return iteration
        return selection.newest_complete(save, ckpt_format)

    def newest_to_load(self) -> int | None:
        """Return the newest complete iteration, also of a non-persistent checkpoint. Raises OSError."""
        fast = self._flags.fast
        local = None if fast is None else selection.newest_complete(fast, self._flags.ckpt_format)
        return max((each for each in (self.newest(), local) if each is not None), default=None)

    def report_newest(self) -> None:
        """On node 0: check and report the newest checkpoint now, so that no other pod need check it."""
        if self._lease is not None:
            # `verify` follows.
            with contextlib.suppress(OSError):
                self._report(self.newest())

    def prepare(self, state: State, new_pods: bool, latest: IterationRecord | None) -> GenerationPlan:
        """On node 0, while no rank runs: repair the directory and plan the generation.

        `latest`: the last iteration according to the gang's store. Raises RunEndedError if nothing is left to
        do or to load, if the directory cannot be read, and if the retry policy ends the run.
        """
        journal, met_at = self._journal, time.time()
        assert journal is not None
        if state.report is not None and state.report.unreadable is not None:
            selection.forget_complete()
        try:
            start, skip = self._choose_start(state, journal)
            self._require_lease()
            journal.start_generation(state.generation, state.report, start, latest, met_at)
        except OSError as error:
            message = f"the checkpoints cannot be read or repaired: {error}"
            raise RunEndedError(Ending(ExitCode.WORKER_DIED, message)) from error
        self._status.set_run(journal.summary())
        return GenerationPlan(
            iteration=start,
            skip=skip,
            preflight=self._settings.preflight and new_pods,
            owner=self._lease.incarnation if self._lease else "",
        )

    def _choose_start(self, state: State, journal: RunJournal) -> tuple[int | None, tuple[int, ...]]:
        """Return the iteration to start from and those to skip."""
        restart = plan_restart(
            journal.policy,
            state.report,
            self._complete_checkpoints(state.report),
            self._flags.train_iters,
            self._settings.loss_on_repeat,
        )
        if restart.verdict is not None:
            self._require_lease()
            journal.write()
            raise RunEndedError(restart.verdict)
        if restart.discard:
            self._roll_back(restart.start, state.report.cause if state.report else "")
        return self._check_start(restart.start, restart.skip, restart.why), restart.skip

    def _complete_checkpoints(self, report: FailureReport | None) -> list[int]:
        """Repair the directories once they are writable. Returns the newest complete iterations, descending.

        Raises RunEndedError if the lease is lost or the directory stays unwritable, OSError if it cannot be
        read.
        """
        if self._lease is None:
            return []
        save = self._flags.save
        assert save is not None, "there is a lease only with --save"
        try:
            self.retry_until_writable(lambda: probe(save))
            self._lease.await_fence()
        except LeaseLostError as error:
            raise self._fence(error) from error
        except OSError as error:
            raise RunEndedError(Ending(ExitCode.WORKER_DIED, describe_write_error(save, error))) from error
        was_full = report is not None and names_full(report.cause)
        complete: set[int] = set()
        complete.update(*(self._repair(directory, was_full) for directory in self._directories()))
        return sorted(complete, reverse=True)

    def _require_lease(self) -> None:
        """Called before every change of the directory: until the generation is planned, nothing reads
        `fenced`. Raises RunEndedError."""
        if self._lease is None:
            return
        try:
            self._lease.check()
        except LeaseLostError as error:
            raise self._fence(error) from error

    def _fence(self, error: LeaseLostError) -> RunEndedError:
        self.fenced = error
        return RunEndedError(Ending(ExitCode.PEER_LOST, str(error)))

    def completed(self, report: FailureReport | None) -> Ending | None:
        """How a Master pod ends that finds the last iteration's checkpoint when it joins; else None.

        The other pods may have completed and never join. `report`, of the generation, may require a rollback.
        Raises OSError.
        """
        train_iters = self._flags.train_iters
        if self._lease is None or train_iters is None:
            return None
        if report is not None and (report.failed_iteration or report.unreadable):
            return None
        newest = self.newest() or 0
        if newest < train_iters:
            return None
        return Ending(ExitCode.OK, f"iteration {newest} of {train_iters} was already done")

    def retry_until_writable(self, write: Callable[[], None]) -> None:
        """Write to --save, with retries for half of the time that other pods wait for this one.

        Raises OSError after that.
        """
        patience = self._settings.rendezvous_timeout / 2
        save = self._flags.save
        assert save is not None, "only called with --save"

        def warn(error: OSError | None) -> None:
            warning = None
            if error is not None:
                warning = f"{describe_write_error(save, error)}; waiting up to {patience:.0f} s for it"
                self._log(f"warning: {warning}")
            self._status.warn("CheckpointVolumeNotWritable", warning)

        retry_until_writable(write, patience, self._interrupted, warn)

    def _directories(self) -> list[Path]:
        """The directories with checkpoints: --save, and that of non-persistent ones."""
        return [path for path in (self._flags.save, self._flags.fast) if path is not None]

    def _roll_back(self, start: int | None, cause: str) -> None:
        """Set all checkpoints after `start` aside."""
        for directory in self._directories():
            complete = selection.newest_complete_iterations(directory, _CANDIDATES, self._flags.ckpt_format)
            newer = [each for each in complete if each > (start or 0)]
            older = next((each for each in complete if each <= (start or 0)), None)
            for repair in selection.roll_back(directory, older, newer, cause, self._require_lease):
                self._log(repair)
            self._prune_set_aside(directory)

    def _prune_set_aside(self, directory: Path) -> None:
        """Keep the newest checkpoints set aside, but none in the directory of non-persistent ones.

        Megatron reads every name there.
        """
        kept = 0 if directory == self._flags.fast else selection.BROKEN_KEPT
        if directory.is_dir():
            selection.prune_set_aside(directory, kept, self._log)

    def _repair(self, directory: Path, was_full: bool) -> list[int]:
        """Set broken checkpoints aside; delete those if the volume has no space for another one.

        `was_full`: the last save failed for lack of space, which a quota does not show before. Returns the
        newest complete iterations, newest first. Raises RunEndedError, OSError.
        """
        ckpt_format = self._flags.ckpt_format
        try:
            choice = selection.choose(directory, ckpt_format, self._require_lease)
        except OSError as error:
            if not is_full(error):
                raise
            selection.prune_set_aside(directory, 0, self._log)
            choice = selection.choose(directory, ckpt_format, self._require_lease)
        for repair in choice.repairs:
            self._log(repair)
        self._prune_set_aside(directory)
        if was_full and directory.is_dir():
            selection.prune_set_aside(directory, 0, self._log)
        elif choice.iteration is not None:
            size = directory_size(selection.directory(directory, choice.iteration))
            if describe_shortage(directory, size):
                selection.prune_set_aside(directory, 0, self._log)
        return selection.newest_complete_iterations(directory, _CANDIDATES, ckpt_format)

    def _check_start(self, start: int | None, skip: tuple[int, ...], why: str) -> int | None:
        """Log where the run starts.

        Raises RunEndedError if it is done, or if there is no checkpoint to load.
        """
        load, train_iters = self._flags.load, self._flags.train_iters
        if start is not None:
            without = f", without {', '.join(map(str, skip))}" if skip else ""
            self._log(f"starting from iteration {start}{without}" + (f" ({why})" if why else ""))
            if train_iters is not None and (self.newest() or 0) >= train_iters:
                raise RunEndedError(
                    Ending(ExitCode.OK, f"iteration {start} of {train_iters} was already done")
                )
            return start
        elsewhere = load is not None and load != self._flags.save
        if (elsewhere or self._settings.require_checkpoint) and not self._can_load():
            raise RunEndedError(
                Ending(ExitCode.NO_CHECKPOINT, f"no complete checkpoint in {load}; one is required")
            )
        weights = None if elsewhere else self._flags.pretrained
        if weights is not None and selection.read_tracker(weights) is None:
            raise RunEndedError(
                Ending(
                    ExitCode.NO_CHECKPOINT,
                    f"no checkpoint in {weights}, whose weights the run starts from (init.from): it has no "
                    f"{selection.TRACKER}; correct the folder, or import the weights again",
                )
            )
        source = load if elsewhere else weights
        self._log(
            "starting from the beginning" if source is None else f"starting from the checkpoint in {source}"
        )
        return None

    def _can_load(self) -> bool:
        load = self._flags.load
        if load is None:
            return False
        released = selection.read_tracker(load) == selection.RELEASE
        return released or selection.newest_complete(load, self._flags.ckpt_format) is not None

    def verify(self, ending: Ending) -> Ending:
        """Check the directory at the end: exit 0 only if the last iteration's checkpoint is complete.

        Of a run that is done, what is not to be kept is deleted before this returns.
        """
        train_iters = self._flags.train_iters
        if self._flags.save is None:
            return ending
        try:
            newest = self.newest()
        except OSError as error:
            if ending.code != ExitCode.OK:
                return ending
            return Ending(ExitCode.WORKER_DIED, f"the last checkpoint cannot be verified: {error}")
        self._report(newest)
        if ending.code == ExitCode.OK:
            # The thread that watches the directory may have missed the last save and the evaluation after it.
            with contextlib.suppress(OSError):
                self._retain(checkpoint=True)
        if ending.code == ExitCode.OK and train_iters is not None and (newest or 0) < train_iters:
            return Ending(
                ExitCode.WORKER_DIED,
                f"all {train_iters} iterations are done but the newest complete checkpoint is {newest}",
            )
        return ending

    def _report(self, iteration: int | None) -> None:
        assert self._flags.save is not None
        written = None
        if iteration is not None:
            written = selection.written_at(selection.directory(self._flags.save, iteration))
        self._status.set_checkpoint(iteration, written)

    def watch(self) -> None:
        """On node 0: watch the directory and its lease, each on a daemon thread.

        Checking or deleting a large checkpoint must not delay the lease. Other pods get what node 0 found.
        """
        if self._lease is not None:
            threading.Thread(target=self._watch_lease, args=(self._lease,), daemon=True, name="lease").start()
            threading.Thread(target=self._watch, daemon=True, name="checkpoints").start()

    def _watch_lease(self, lease: CheckpointLease) -> None:
        while self.fenced is None:
            time.sleep(_WATCH_SECONDS)
            try:
                lease.check()
            except LeaseLostError as error:
                self.fenced = error

    def _watch(self) -> None:
        tracker: str | None = None
        measured_at = 0.0
        while self.fenced is None:
            time.sleep(_WATCH_SECONDS)
            before = tracker
            with contextlib.suppress(OSError):
                tracker = self._check_directory(tracker)
            now = time.monotonic()
            if tracker != before or now - measured_at > _MEASURE_SECONDS:
                measured_at = now
                with contextlib.suppress(OSError):
                    self._measure()

    def _measure(self) -> None:
        """On node 0: warn if the volume has no space for a checkpoint as large as the newest."""
        save, newest = self._flags.save, self._status.report.checkpoint_iteration
        if self._lease is None or save is None or newest is None:
            return
        if newest != self._sized:
            self._size, self._sized = directory_size(selection.directory(save, newest)), newest
        saving = [each for each in selection.iterations(save) if each > newest]
        written = sum(directory_size(selection.directory(save, each)) for each in saving)
        shortage = describe_shortage(save, self._size, written)
        if shortage is not None and not self._low:
            self._log(f"warning: {shortage}")
        self._low = shortage is not None
        self._status.warn("CheckpointVolumeLow", shortage)

    def _check_directory(self, reported: str | None) -> str | None:
        """Report a new complete checkpoint and delete old ones, also after a new evaluation.

        `reported`: the tracker's text of the last reported checkpoint. Returns that of the last one now.
        """
        save = self._flags.save
        assert save is not None
        text = selection.read_tracker(save)
        newest = None if text is None or text == reported else self.newest()
        new = newest is not None and str(newest) == text
        if new:
            self._report(newest)
        self._retain(checkpoint=new)
        return text if new else reported

    def _retain(self, *, checkpoint: bool) -> None:
        """On node 0, after a new `checkpoint` or evaluation: report the best, delete those not to keep."""
        save, ckpt_format, keep = self._flags.save, self._flags.ckpt_format, self._settings.keep_checkpoints
        if self._lease is None or save is None or self.fenced is not None:
            return
        # The end of the run does not wait for the thread that watches the directory.
        with self._retaining:
            evaluated = self._settings.keep_best and self._validations.read_new()
            if not (checkpoint or evaluated):
                return
            best = None
            if self._settings.keep_best:
                losses = self._validations.losses
                best = best_complete(save, losses, ckpt_format)
                self._status.set_best_checkpoint(best, None if best is None else losses[best])
            if keep:
                with contextlib.suppress(LeaseLostError):
                    selection.prune(save, keep, ckpt_format, self._log, self._lease.check, best)

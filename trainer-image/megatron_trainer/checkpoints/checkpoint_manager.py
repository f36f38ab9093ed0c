"""The checkpoint directory as a pod's launcher deals with it: where to start, what to keep, what to tell."""

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.checkpoints import selection
from megatron_trainer.checkpoints.checkpoint_lease import NotOwner, Ownership
from megatron_trainer.checkpoints.volume import bytes_in, persist, probe, why_low, why_unwritable
from megatron_trainer.health.retry_policy import next_course
from megatron_trainer.launcher.flags import Flags
from megatron_trainer.launcher.settings import Settings
from megatron_trainer.launcher.termination import Ending
from megatron_trainer.rendezvous.state import Ended, Plan, State
from megatron_trainer.telemetry.run_journal import Book
from megatron_trainer.telemetry.status import Status, written_at

_WATCH_SECONDS = 0.5
_MEASURE_SECONDS = 10.0
# Checkpoints that the loss policy may choose among.
_CANDIDATES = 4


class Keeper:
    """Looks after --save. `book` and `ownership` are there on node 0 only, `ownership` only with --save."""

    def __init__(
        self,
        settings: Settings,
        flags: Flags,
        status: Status,
        book: Book | None,
        ownership: Ownership | None,
        interrupted: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._flags = flags
        self._status = status
        self._book = book
        self._ownership = ownership
        self._interrupted = interrupted
        self._log = log
        self._size = 0
        self._low = False
        self.fenced: NotOwner | None = None

    def newest(self) -> int | None:
        """The newest whole checkpoint's iteration."""
        save = self._flags.save
        return None if save is None else selection.newest_whole(save, self._flags.ckpt_format)

    def prepare(self, state: State, new_pods: bool, told: dict[str, object]) -> Plan:
        """On node 0, while no rank is alive: put the directory in order and say where to start.

        `told`: the last iteration as the gang's store has it. Raises Ended where nothing is left to do or to
        load, and where the loss policy ends the run.
        """
        book, met_at = self._book, time.time()
        assert book is not None
        start, skip = self._course(state, book)
        book.begin(state.generation, state.report, start, told, met_at)
        self._status.set_quietly(**book.public())
        return Plan(
            iteration=start,
            skip=skip,
            preflight=self._settings.preflight and new_pods,
            owner=self._ownership.incarnation if self._ownership else "",
        )

    def _course(self, state: State, book: Book) -> tuple[int | None, tuple[int, ...]]:
        whole: set[int] = set()
        if self._ownership is not None:
            save = self._flags.save
            assert save is not None, "it is what is owned"
            try:
                self.persist(lambda: probe(save))
                self._ownership.await_fence()
            except NotOwner as error:
                raise Ended(Ending(ExitCode.PEER_LOST, str(error))) from error
            except OSError as error:
                raise Ended(Ending(ExitCode.WORKER_DIED, why_unwritable(save, error))) from error
            whole.update(*(self._put_in_order(tier) for tier in self._tiers()))
        course = next_course(
            book.policy,
            state.report,
            sorted(whole, reverse=True),
            self._flags.train_iters,
            self._settings.loss_on_repeat,
        )
        if course.verdict is not None:
            book.write()
            raise Ended(course.verdict)
        if course.discard:
            self._go_back(course.start, state.report.cause if state.report else "")
        return self._told_start(course.start, course.skip, course.why), course.skip

    def persist(self, write: Callable[[], None]) -> None:
        """Write to --save, and wait for it half as long as the others wait for this pod. Raises OSError."""
        patience = self._settings.rendezvous_timeout / 2
        save = self._flags.save
        assert save is not None, "it is what is written to"

        def told(error: OSError | None) -> None:
            waiting = None
            if error is not None:
                waiting = f"{why_unwritable(save, error)}; waiting up to {patience:.0f} s for it"
                self._log(f"warning: {waiting}")
            self._status.warn("CheckpointVolumeNotWritable", waiting)

        persist(write, patience, self._interrupted, told)

    def _tiers(self) -> list[Path]:
        """Where checkpoints lie: the directory of the run, and that of non-persistent ones."""
        return [each for each in (self._flags.save, self._flags.fast) if each is not None]

    def _go_back(self, start: int | None, cause: str) -> None:
        """Take all checkpoints after `start` out of the way."""
        for tier in self._tiers():
            whole = selection.newest_wholes(tier, _CANDIDATES, self._flags.ckpt_format)
            newer = [each for each in whole if each > (start or 0)]
            older = next((each for each in whole if each <= (start or 0)), None)
            for repair in selection.go_back(tier, older, newer, cause):
                self._log(repair)
            self._thin_out(tier)

    def _thin_out(self, tier: Path) -> None:
        """Megatron reads all names in the directory of non-persistent ones: nothing may lie there aside."""
        kept = 0 if tier == self._flags.fast else selection.BROKEN_KEPT
        if tier.is_dir():
            selection.prune_set_aside(tier, kept, self._log)

    def _put_in_order(self, save: Path) -> list[int]:
        """Set broken checkpoints aside; delete those, where the volume has no room for another whole one.

        Returns the newest whole ones.
        """
        form = self._flags.ckpt_format
        try:
            try:
                choice = selection.choose(save, form)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                selection.prune_set_aside(save, 0, self._log)
                choice = selection.choose(save, form)
        except OSError as error:
            message = f"{save} cannot be put in order: {error.strerror or error}"
            raise Ended(Ending(ExitCode.WORKER_DIED, message)) from error
        for repair in choice.repairs:
            self._log(repair)
        self._thin_out(save)
        if choice.iteration is not None:
            size = bytes_in(selection.directory(save, choice.iteration))
            if why_low(save, size):
                selection.prune_set_aside(save, 0, self._log)
        return selection.newest_wholes(save, _CANDIDATES, form)

    def _told_start(self, start: int | None, skip: tuple[int, ...], why: str) -> int | None:
        """Log where the run starts; raises Ended where there is no need to, or no way."""
        load, trained = self._flags.load, self._flags.train_iters
        if start is not None:
            without = f", without {', '.join(map(str, skip))}" if skip else ""
            self._log(f"starting from iteration {start}{without}" + (f" ({why})" if why else ""))
            if trained is not None and (self.newest() or 0) >= trained:
                raise Ended(Ending(ExitCode.OK, f"iteration {start} of {trained} was done already"))
            return start
        elsewhere = load is not None and load != self._flags.save
        if (elsewhere or self._settings.require_checkpoint) and not self._can_load():
            raise Ended(Ending(ExitCode.NO_CHECKPOINT, f"no whole checkpoint in {load}; one is required"))
        self._log(f"starting from what is in {load}" if elsewhere else "starting from the beginning")
        return None

    def _can_load(self) -> bool:
        load = self._flags.load
        if load is None:
            return False
        released = selection.tracked(load) == "release"
        return released or selection.newest_whole(load, self._flags.ckpt_format) is not None

    def verify(self, ending: Ending) -> Ending:
        """Look at the directory once more: exit 0 only if the last iteration's checkpoint is whole."""
        trained = self._flags.train_iters
        if self._flags.save is None:
            return ending
        newest = self.newest()
        self._tell(newest)
        if ending.code == ExitCode.OK and trained is not None and (newest or 0) < trained:
            return Ending(
                ExitCode.WORKER_DIED,
                f"all {trained} iterations are done but the newest whole checkpoint is {newest}",
            )
        return ending

    def _tell(self, iteration: int | None) -> None:
        assert self._flags.save is not None
        written = None if iteration is None else written_at(selection.directory(self._flags.save, iteration))
        self._status.checkpoint(iteration, written)

    def watch(self) -> None:
        """Follow the directory on a thread, for as long as the process lives."""
        if self._flags.save is not None:
            threading.Thread(target=self._watch, daemon=True, name="checkpoints").start()

    def _watch(self) -> None:
        seen: str | None = None
        measured_at = 0.0
        while self.fenced is None:
            time.sleep(_WATCH_SECONDS)
            with contextlib.suppress(OSError):
                before, seen = seen, self._look(seen)
                now = time.monotonic()
                if seen != before or now - measured_at > _MEASURE_SECONDS:
                    measured_at = now
                    self._measure(new=seen != before)

    def _measure(self, new: bool) -> None:
        """On node 0: warn when the volume has no room for a checkpoint like the newest."""
        save, newest = self._flags.save, self._status.get("checkpointIteration")
        if self._ownership is None or save is None or newest is None:
            return
        if new or not self._size:
            self._size = bytes_in(selection.directory(save, newest))
        low = why_low(save, self._size)
        if low is not None and not self._low:
            self._log(f"warning: {low}")
        self._low = low is not None
        self._status.warn("CheckpointVolumeLow", low)

    def _look(self, seen: str | None) -> str | None:
        """When Megatron's tracker names a new whole checkpoint: tell it, and delete old ones (node 0)."""
        save, form = self._flags.save, self._flags.ckpt_format
        assert save is not None
        if self._ownership is not None:
            try:
                self._ownership.check()
            except NotOwner as error:
                self.fenced = error
                return seen
        text = selection.tracked(save)
        newest = None if text is None or text == seen else self.newest()
        if newest is None or str(newest) != text:
            return seen
        self._tell(newest)
        if self._ownership is not None and self._settings.keep_checkpoints:
            selection.prune(save, self._settings.keep_checkpoints, form, self._log)
        return text

"""Runs for the rows of the fault table: reused while they last, checked when they end."""

import contextlib
import itertools
from pathlib import Path

from localcluster import Cluster
from localcluster.errors import ClusterError

from testkit.faults.injections import FaultContext
from testkit.faults.rows import Row
from testkit.faults.table import (
    ITERATIONS_PER_ROW,
    IncidentMismatchError,
    UndisturbedRun,
    check_losses,
    check_samples,
    play,
)
from testkit.installation import DATA_CLAIM
from testkit.kubectl import Kubectl
from testkit.waiting import DEADLINE, wait_until
from testkit.watched_run import KEEP, WatchedRun

NAMESPACE = "megatron-faults"
ITERATIONS = 240
ITERATIONS_OF_ALL = 1200
"""For the whole table: some of its faults last for minutes, during which the run keeps training."""
DISK_MEBIBYTES = 128
"""Size of the checkpoint volume that a fault fills."""


def finish(run: WatchedRun, expected: UndisturbedRun | None) -> UndisturbedRun:
    """Wait for the end of a run, check what every run must leave behind, and delete it.

    Args:
        run: A run that trains.
        expected: The losses and samples of an undisturbed run; None for the undisturbed run itself.

    Returns:
        Its losses and samples.

    Raises:
        AssertionError: The run failed, or its losses, samples or checkpoints are wrong.
        TimeoutError: The run did not end.
    """
    status = run.wait(lambda status: status.phase in ("Succeeded", "Failed"), 2 * DEADLINE)
    assert status.phase == "Succeeded", status.message
    records = run.records()
    samples = run.samples()
    own = UndisturbedRun({record.iteration: record.loss for record in records}, samples.places())
    expected = own if expected is None else expected
    check_losses(run, expected.losses)
    check_samples(samples, expected.samples, run.train_iters)
    assert samples.problems() == []
    assert records[-1].iteration == run.train_iters
    saved = run.saved()
    assert saved[-1] == run.train_iters
    assert len(saved) >= KEEP, f"found the checkpoints {saved}, expected at least {KEEP}"
    run.delete()
    assert run.pods() == []
    return own


class RunPool:
    """Gives each row a run with enough iterations left; ends the previous run where it cannot be reused."""

    def __init__(
        self,
        kubectl: Kubectl,
        cluster: Cluster,
        iterations: int,
        backend: str = "pytorchjob",
        file: Path | None = None,
    ) -> None:
        """`iterations` of each run; `backend` and `file` as those of a WatchedRun."""
        self._backend = backend
        self._file = file
        self._kubectl = kubectl
        self._cluster = cluster
        self._disks = contextlib.ExitStack()
        self._iterations = iterations
        self._numbers = itertools.count()
        self._run: WatchedRun | None = None
        self._has_own_spec = False
        """Whether the current run's recipe differs from that of the others."""
        self.expected = UndisturbedRun({}, {})

    def record_reference(self) -> None:
        """Run once without a fault and keep its losses and samples. Raises as finish() does."""
        self.expected = finish(self._start(), None)

    def play(self, row: Row) -> None:
        """Play a row on a run that suits it; one that does not survive is deleted. Raises as play() does."""
        try:
            play(FaultContext(self.run_for(row), self._cluster), row, self.expected)
        except IncidentMismatchError:
            raise
        except BaseException:
            self.discard()
            raise

    def run_for(self, row: Row) -> WatchedRun:
        """A run that suits the row, trains, and has ITERATIONS_PER_ROW iterations left."""
        current = self._run
        if current is not None and (row.needs_own_run or self._has_own_spec or self._nearly_done(current)):
            self.finish()
        if self._run is None:
            self._run, self._has_own_spec = self._start(row), bool(row.spec)
        return self._run

    def finish(self) -> None:
        """Let the current run finish and check it. Raises as finish() does."""
        if self._run is not None:
            run, self._run = self._run, None
            with self._disks:
                finish(run, self.expected)

    def discard(self) -> None:
        """Delete a run that a row has broken, so that the next row starts with a healthy one."""
        if self._run is not None:
            run, self._run = self._run, None
            with self._disks:
                run.delete()

    def _start(self, row: Row | None = None) -> WatchedRun:
        name = f"run-{next(self._numbers)}"
        run = WatchedRun(self._kubectl, name, self._iterations, self._backend, self._file)
        if row is not None:
            run.change(row.spec)
            if row.small_disk:
                self._give_small_disk(run)
        run.apply()
        wait_until(f"{run.name} to train", run.is_training)
        return run

    def _nearly_done(self, run: WatchedRun) -> bool:
        return run.records()[-1].iteration + ITERATIONS_PER_ROW > self._iterations

    def _give_small_disk(self, run: WatchedRun) -> None:
        """Put the run's checkpoints on a disk that can be filled."""
        name = f"{run.name}-small-disk"
        run.manifest["spec"]["checkpoint"]["volume"] = {"claimName": name}
        self._kubectl.apply({**DATA_CLAIM, "metadata": {"name": name}})

        def bound() -> Path | None:
            with contextlib.suppress(ClusterError, FileNotFoundError):
                return run.folder.parent if run.folder.parent.is_dir() else None
            return None

        folder = wait_until(f"the volume of {name}", bound)
        self._disks.enter_context(self._cluster.small_disk(folder, DISK_MEBIBYTES))

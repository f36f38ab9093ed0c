"""The local two-node cluster with the operator installed, and runs that the rows of the table are done to."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from localcluster import Cluster as Machine
from localcluster.errors import ClusterError

from demo.__main__ import OPERATOR_NAMESPACE, connect, install
from testkit.faults.rows import Row
from testkit.faults.table import ROOM, check_curve
from testkit.kubectl import Cluster
from testkit.watched_run import DATA_CLAIM, DEADLINE, KEEP, WatchedRun, eventually

NAMESPACE = "megatron-faults"
ITERATIONS = 240
ITERATIONS_OF_ALL = 1200
"""Some faults of the whole table last for minutes, in which the run trains on."""
DISK_MEBIBYTES = 128
ALL = os.environ.get("MEGATRON_FAULTS") == "all"


@contextlib.contextmanager
def ready(cluster: Cluster) -> Iterator[Cluster]:
    """Everything installed, the namespace and the data's claim made; taken away at the end."""
    install(cluster)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    cluster.apply(DATA_CLAIM)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")
    cluster.helm("uninstall", "megatron-operator", "--namespace", OPERATOR_NAMESPACE, "--wait")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The local cluster, which stays up for the next layer."""
    if os.geteuid() != 0:
        pytest.skip("needs root: faults are done to processes, control groups and network namespaces")
    given = os.environ.get("KUBECONFIG")
    if given and Path(given).resolve() != Machine().kubeconfig:
        pytest.skip("faults are done to the local cluster alone: unset KUBECONFIG")
    with ready(Cluster(connect(), NAMESPACE)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine(quiet=True)


def finish(run: WatchedRun, expected: dict[int, float] | None) -> dict[int, float]:
    """Wait for the end, and check what every run must leave behind. Returns the loss by iteration."""
    status = run.wait(lambda status: status.phase in ("Succeeded", "Failed"), 2 * DEADLINE)
    assert status.phase == "Succeeded", status.message
    steps = run.steps()
    check_curve(run, {s.iteration: s.loss for s in steps} if expected is None else expected)
    assert steps[-1].iteration == run.train_iters
    saved = run.saved()
    assert saved[-1] == run.train_iters
    assert len(saved) >= KEEP, f"checkpoints {saved} are left, {KEEP} should be"
    run.delete()
    assert run.pods() == []
    return {s.iteration: s.loss for s in steps}


class Runs:
    """Gives each row a run with iterations left; ends the one before where it has too few, or is broken."""

    def __init__(self, cluster: Cluster, machine: Machine, iterations: int) -> None:
        """Each run has so many `iterations`."""
        self._cluster = cluster
        self._machine = machine
        self._disks = contextlib.ExitStack()
        self._iterations = iterations
        self._numbers = itertools.count()
        self._run: WatchedRun | None = None
        self._odd = False
        """Its recipe is not that of the others."""
        self.expected: dict[int, float] = {}

    def _start(self, row: Row | None = None) -> WatchedRun:
        run = WatchedRun(self._cluster, f"run-{next(self._numbers)}", self._iterations)
        if row is not None:
            run.change(row.spec)
            if row.disk:
                self._give_small_disk(run)
        run.apply()
        eventually(f"{run.name} to train", lambda: run.trains() or None)
        return run

    def _give_small_disk(self, run: WatchedRun) -> None:
        """Its checkpoints go to a disk that can be filled up."""
        name = f"{run.name}-small-disk"
        run.manifest["spec"]["checkpoint"]["volume"] = {"claimName": name}
        self._cluster.apply({**DATA_CLAIM, "metadata": {"name": name}})

        def bound() -> Path | None:
            with contextlib.suppress(ClusterError, FileNotFoundError):
                return run.folder.parent if run.folder.parent.is_dir() else None
            return None

        folder = eventually(f"the volume of {name}", bound)
        self._disks.enter_context(self._machine.small_disk(folder, DISK_MEBIBYTES))

    def undisturbed(self) -> None:
        """One run to which nothing happens, for its losses."""
        self.expected = finish(self._start(), None)

    def one(self, row: Row) -> WatchedRun:
        """A run as the row wants it, which trains and has ROOM iterations left."""
        if self._run is not None and (row.alone or self._odd or not self._has_room(self._run)):
            self.end()
        if self._run is None:
            self._run, self._odd = self._start(row), bool(row.spec)
        return self._run

    def _has_room(self, run: WatchedRun) -> bool:
        return run.steps()[-1].iteration + ROOM <= self._iterations

    def end(self) -> None:
        """Let the run finish as if nothing had happened."""
        if self._run is not None:
            run, self._run = self._run, None
            with self._disks:
                finish(run, self.expected)

    def drop(self) -> None:
        """Forget a run that a row has broken, so that the next row starts with a whole one."""
        if self._run is not None:
            run, self._run = self._run, None
            with self._disks:
                run.delete()


@pytest.fixture(scope="session")
def runs(cluster: Cluster, machine: Machine) -> Runs:
    runs = Runs(cluster, machine, ITERATIONS_OF_ALL if ALL else ITERATIONS)
    runs.undisturbed()
    return runs

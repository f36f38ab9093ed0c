"""A series of trials of one fault: how many there are, and when the system is begun anew."""

from pathlib import Path
from typing import Any, cast

import pytest
from localcluster import Cluster as Machine
from localcluster.errors import ClusterError

from bench import recovery
from bench.recovery import Bench
from bench.recovery_report import PHASES, Cell, Measured
from bench.recovery_systems import System
from bench.recovery_watch import Seen

CAME_BACK = Cell(dict.fromkeys(PHASES, 2.0))
STUCK = Cell(stuck="no new iteration in 150 s")


class Scripted:
    """Stands in for a system: `trials` are what becomes of it, one after the other."""

    key = "exitcode"

    def __init__(self, *trials: Cell | Exception) -> None:
        self.trials = list(trials)
        self.restarts = 0

    def worn(self) -> bool:
        return False

    def kill_rank(self) -> None: ...


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    def watch(system: Any, _fault: object) -> Seen:
        found = system.trials.pop(0)
        if isinstance(found, Exception):
            raise found
        return Seen(found)

    def restart(system: Any) -> None:
        system.restarts += 1

    monkeypatch.setattr(recovery, "watch", watch)
    monkeypatch.setattr(recovery, "restart", restart)
    monkeypatch.setattr(recovery, "settle", lambda _system: None)
    monkeypatch.setattr(recovery, "write", lambda _measured: None)
    return Bench(cast(Machine, Path()), Measured(), every=False)


def run(bench: Bench, *trials: Cell | Exception) -> Scripted:
    system = Scripted(*trials)
    bench.series(cast(System, system), "rank")
    return system


def test_five_trials_that_came_back_need_no_new_start(bench: Bench) -> None:
    system = run(bench, *[CAME_BACK] * 7)
    assert bench.measured.cells["exitcode"]["rank"] == [CAME_BACK] * 5
    assert system.restarts == 0


def test_three_stuck_trials_end_a_series_of_five(bench: Bench) -> None:
    system = run(bench, STUCK, CAME_BACK, STUCK, STUCK, CAME_BACK)
    assert bench.measured.cells["exitcode"]["rank"] == [STUCK, CAME_BACK, STUCK, STUCK]
    assert system.restarts == 2
    assert bench.broken, "the next series begins with a restart"


def test_trials_kept_from_before_count(bench: Bench) -> None:
    bench.measured.cells = {"exitcode": {"rank": [CAME_BACK] * 4}}
    assert len(run(bench, CAME_BACK, CAME_BACK).trials) == 1


def test_a_fault_that_could_not_be_done_is_no_trial(bench: Bench) -> None:
    system = run(bench, ClusterError("process 7 is gone"), *[CAME_BACK] * 5)
    assert bench.measured.cells["exitcode"]["rank"] == [CAME_BACK] * 5
    assert system.restarts == 1


def test_a_series_whose_faults_cannot_be_done_is_left(bench: Bench) -> None:
    run(bench, *[ClusterError("process 7 is gone")] * 3)
    assert bench.measured.cells == {}

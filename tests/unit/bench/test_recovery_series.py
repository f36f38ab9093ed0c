"""A series of trials of one fault: how many there are, and when the system restarts."""

from pathlib import Path
from typing import Any, cast

import pytest
from localcluster import Cluster
from localcluster.errors import ClusterError

from bench import recovery
from bench.recovery import Bench
from bench.recovery_report import PHASES, Cell, Measured
from bench.recovery_systems import System
from bench.recovery_watch import Observation

RECOVERED = Cell(dict.fromkeys(PHASES, 2.0))
STUCK = Cell(stuck="no new iteration in 150 s")


class Scripted:
    """Stands in for a system: `trials` are its results, in order."""

    key = "exitcode"

    def __init__(self, *trials: Cell | Exception) -> None:
        self.trials = list(trials)
        self.restarts = 0

    def needs_restart(self) -> bool:
        return False

    def kill_rank(self) -> None: ...


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    def watch(system: Any, _fault: object) -> Observation:
        found = system.trials.pop(0)
        if isinstance(found, Exception):
            raise found
        return Observation(found)

    def restart(system: Any) -> None:
        system.restarts += 1

    monkeypatch.setattr(recovery, "watch", watch)
    monkeypatch.setattr(recovery, "restart", restart)
    monkeypatch.setattr(recovery, "settle", lambda _system: None)
    monkeypatch.setattr(recovery, "write", lambda _measured: None)
    return Bench(cast(Cluster, Path()), Measured(), every=False)


def run(bench: Bench, *trials: Cell | Exception) -> Scripted:
    system = Scripted(*trials)
    bench.series(cast(System, system), "rank")
    return system


def test_five_recovered_trials_need_no_restart(bench: Bench) -> None:
    system = run(bench, *[RECOVERED] * 7)
    assert bench.measured.cells["exitcode"]["rank"] == [RECOVERED] * 5
    assert system.restarts == 0


def test_three_stuck_trials_end_a_series_of_five(bench: Bench) -> None:
    system = run(bench, STUCK, RECOVERED, STUCK, STUCK, RECOVERED)
    assert bench.measured.cells["exitcode"]["rank"] == [STUCK, RECOVERED, STUCK, STUCK]
    assert system.restarts == 2
    assert bench.broken, "the next series begins with a restart"


def test_trials_kept_from_an_earlier_run_count(bench: Bench) -> None:
    bench.measured.cells = {"exitcode": {"rank": [RECOVERED] * 4}}
    assert len(run(bench, RECOVERED, RECOVERED).trials) == 1


def test_a_fault_that_could_not_be_injected_is_no_trial(bench: Bench) -> None:
    system = run(bench, ClusterError("process 7 is gone"), *[RECOVERED] * 5)
    assert bench.measured.cells["exitcode"]["rank"] == [RECOVERED] * 5
    assert system.restarts == 1


def test_a_series_whose_faults_cannot_be_injected_is_abandoned(bench: Bench) -> None:
    run(bench, *[ClusterError("process 7 is gone")] * 3)
    assert bench.measured.cells == {}

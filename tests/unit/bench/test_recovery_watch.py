"""When a trial is over, and which second belongs to which phase."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from bench.recovery_report import PHASES
from bench.recovery_systems import System
from bench.recovery_watch import _spans, first_new_iteration, watch
from testkit.training_run import IterationRecord


def test_a_phase_that_ended_before_its_predecessor_took_no_time() -> None:
    # Pods have been bound since before the fault: nothing had to be scheduled.
    marks = [100.0, 102.0, 90.0, 103.0, 107.0, 108.0]
    assert _spans(marks) == dict(zip(PHASES, [2.0, 0.0, 1.0, 4.0, 1.0], strict=True))


def test_the_goal_is_the_first_iteration_that_had_not_been_done_before() -> None:
    new = [IterationRecord(n, 1.0, float(n), 0) for n in (9, 10, 11, 12)]
    assert first_new_iteration(new, 10) == new[2]
    assert first_new_iteration(new, 12) is None


@dataclass(eq=False)
class Rank:
    alive: bool = True


@dataclass
class Scripted:
    """Stands in for a system: each reading of its ranks triggers the next scripted event."""

    key: str = "scripted"
    ranks: list[Rank] = field(default_factory=lambda: [Rank() for _ in range(4)])
    done: list[IterationRecord] = field(default_factory=lambda: [IterationRecord(1, 1.0, time.time(), 0)])
    script: list[Any] = field(default_factory=list)
    final: str | None = None

    def all_ranks(self) -> set[Rank]:
        if self.script:
            self.script.pop(0)()
        return {rank for rank in self.ranks if rank.alive}

    def bound(self) -> bool:
        return True

    def records(self) -> list[IterationRecord]:
        return self.done

    def final_state(self) -> str | None:
        return self.final

    def record(self, iteration: int) -> None:
        self.done.append(IterationRecord(iteration, 1.0, time.time(), 0))

    def kill(self) -> None:
        for rank in self.ranks:
            rank.alive = False

    def start(self, count: int = 4) -> None:
        self.ranks = [Rank() for _ in range(count)]


def observe(system: Scripted, cap: float = 5.0, give_up_after: int | None = None) -> Any:
    return watch(cast(System, system), lambda: None, cap, give_up_after=give_up_after)


def test_iterations_of_ranks_that_die_later_are_no_recovery() -> None:
    system = Scripted()
    system.script = [
        lambda: None,
        # The ranks of a force-deleted pod keep training for a while.
        lambda: system.record(2),
        system.kill,
        system.start,
        lambda: system.record(2),
        lambda: system.record(3),
    ]
    found = observe(system)
    assert [record.iteration for record in found.new_records] == [2, 3]
    assert not found.cell.stuck
    assert found.starts == 1


def test_ranks_of_only_one_pod_are_no_start() -> None:
    system = Scripted()
    system.script = [lambda: None, system.kill, lambda: system.start(2), lambda: system.record(2)]
    assert observe(system, cap=1.0).cell.stuck == "no new iteration in 1 s"


@pytest.mark.parametrize("final", ["Failed: exit code 1", "Succeeded: done"])
def test_a_system_that_has_ended_is_not_waited_for(final: str) -> None:
    system = Scripted()
    system.script = [lambda: None, lambda: setattr(system, "final", final)]
    found = observe(system, cap=600.0)
    assert found.final_state == final
    assert final in found.cell.stuck


def test_two_starts_without_an_iteration_end_the_trial_where_requested() -> None:
    system = Scripted()
    system.script = [lambda: None, *[system.kill, system.start] * 2, system.kill, system.start]
    found = observe(system, cap=600.0, give_up_after=2)
    assert found.cell.stuck == "2 starts in a row ended without an iteration"
    assert found.starts == 2


def test_old_ranks_of_one_pod_with_new_ranks_of_the_other_are_no_further_start() -> None:
    system = Scripted()

    def replace_half() -> None:
        for rank in system.ranks[:2]:
            rank.alive = False
        system.ranks = [*system.ranks[2:], Rank(), Rank()]

    system.script = [lambda: None, system.kill, system.start, replace_half, lambda: None]
    assert observe(system, cap=1.0).starts == 1

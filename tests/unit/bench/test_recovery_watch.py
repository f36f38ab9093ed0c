"""When a trial is over, and which second belongs to which phase."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from bench.recovery_report import PHASES
from bench.recovery_systems import System
from bench.recovery_watch import _spans, beyond, watch
from testkit.training_run import Step


def test_a_phase_that_ended_before_the_one_before_it_took_no_time() -> None:
    # Pods have been bound since before the fault: nothing had to be scheduled.
    marks = [100.0, 102.0, 90.0, 103.0, 107.0, 108.0]
    assert _spans(marks) == dict(zip(PHASES, [2.0, 0.0, 1.0, 4.0, 1.0], strict=True))


def test_the_goal_is_the_first_iteration_that_had_not_been_done_before() -> None:
    anew = [Step(n, 1.0, float(n), 0) for n in (9, 10, 11, 12)]
    assert beyond(anew, 10) == anew[2]
    assert beyond(anew, 12) is None


@dataclass(eq=False)
class Rank:
    alive: bool = True


@dataclass
class Scripted:
    """Stands in for a system: one scripted event a look at its ranks."""

    key: str = "scripted"
    ranks: list[Rank] = field(default_factory=lambda: [Rank() for _ in range(4)])
    done: list[Step] = field(default_factory=lambda: [Step(1, 1.0, time.time(), 0)])
    script: list[Any] = field(default_factory=list)
    said: str | None = None

    def all_ranks(self) -> set[Rank]:
        if self.script:
            self.script.pop(0)()
        return {rank for rank in self.ranks if rank.alive}

    def bound(self) -> bool:
        return True

    def steps(self) -> list[Step]:
        return self.done

    def ended(self) -> str | None:
        return self.said

    def step(self, iteration: int) -> None:
        self.done.append(Step(iteration, 1.0, time.time(), 0))

    def kill(self) -> None:
        for rank in self.ranks:
            rank.alive = False

    def begin(self, count: int = 4) -> None:
        self.ranks = [Rank() for _ in range(count)]


def seen(system: Scripted, cap: float = 5.0, hopeless: int | None = None) -> Any:
    return watch(cast(System, system), lambda: None, cap, hopeless=hopeless)


def test_steps_of_ranks_that_die_later_are_no_recovery() -> None:
    system = Scripted()
    system.script = [
        lambda: None,
        # Survivors of a pod deleted by force train on for a while.
        lambda: system.step(2),
        system.kill,
        system.begin,
        lambda: system.step(2),
        lambda: system.step(3),
    ]
    found = seen(system)
    assert [step.iteration for step in found.anew] == [2, 3]
    assert not found.cell.stuck
    assert found.starts == 1


def test_ranks_of_one_pod_alone_are_no_start() -> None:
    system = Scripted()
    system.script = [lambda: None, system.kill, lambda: system.begin(2), lambda: system.step(2)]
    assert seen(system, cap=1.0).cell.stuck == "no new iteration in 1 s"


@pytest.mark.parametrize("said", ["Failed: exit code 1", "Succeeded: done"])
def test_a_system_that_says_it_has_ended_is_not_waited_for(said: str) -> None:
    system = Scripted()
    system.script = [lambda: None, lambda: setattr(system, "said", said)]
    found = seen(system, cap=600.0)
    assert found.ended == said
    assert said in found.cell.stuck


def test_two_starts_that_end_without_a_step_are_hopeless_where_that_was_asked_for() -> None:
    system = Scripted()
    system.script = [lambda: None, *[system.kill, system.begin] * 2, system.kill, system.begin]
    found = seen(system, cap=600.0, hopeless=2)
    assert found.cell.stuck == "2 starts in a row ended without a step"
    assert found.starts == 2


def test_ranks_of_one_pod_that_met_the_next_ones_of_the_other_are_no_further_start() -> None:
    system = Scripted()

    def replace_half() -> None:
        for rank in system.ranks[:2]:
            rank.alive = False
        system.ranks = [*system.ranks[2:], Rank(), Rank()]

    system.script = [lambda: None, system.kill, system.begin, replace_half, lambda: None]
    assert seen(system, cap=1.0).starts == 1

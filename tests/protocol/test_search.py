"""The search itself: shortest traces, states that are stuck, and a deterministic order."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.protocol.search import Transition, describe, explore


class Counter(NamedTuple):
    value: int
    broken: int = 0


def count(state: Counter) -> Iterator[Counter]:
    if state.value < 5 and not state.broken:
        yield state._replace(value=state.value + 1)


def jump(state: Counter) -> Iterator[Counter]:
    if state == Counter(0):
        yield Counter(3)


def break_down(state: Counter) -> Iterator[Counter]:
    if not state.broken:
        yield state._replace(broken=1)


STEPS = [Transition("count", count), Transition("jump", jump)]
BREAKS = [*STEPS, Transition("break down", break_down, fault=True)]


def never(_state: Counter) -> str | None:
    return None


def at_five(state: Counter) -> bool:
    return state.value == 5


def test_every_state_is_visited_once() -> None:
    found = explore(Counter(0), STEPS, never, at_five)
    assert (found.states, found.transitions, found.depth, found.stuck) == (6, 6, 3, 0)
    assert found.taken == {"count", "jump"}


def test_a_violation_has_its_shortest_trace() -> None:
    found = explore(Counter(0), STEPS, lambda s: "four" if s.value == 4 else None, at_five)
    trace = found.violations["four"]
    assert [step.transition for step in trace] == ["start", "jump", "count"]
    assert describe(trace) == "start: \njump: value=3\ncount: value=4"


def test_states_that_cannot_reach_the_goal_are_stuck_and_faults_do_not_count() -> None:
    found = explore(Counter(0), BREAKS, never, at_five)
    assert found.stuck == 5
    assert found.stuck_trace is not None
    assert found.stuck_trace[-1].state == Counter(0, 1)


def test_the_search_stops_at_the_violation_it_is_asked_for_and_at_its_limit() -> None:
    found = explore(Counter(0), STEPS, lambda s: "one" if s.value == 1 else None, at_five, until="one")
    assert found.truncated
    assert found.states == 3
    assert explore(Counter(0), STEPS, never, at_five, limit=2).truncated

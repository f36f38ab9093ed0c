"""Breadth-first exploration of a model: violations with their shortest traces, and states that are stuck.

Deterministic: transitions are tried in their order, so two runs find the same states in the same order.
"""

import gc
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Transition(NamedTuple):
    """A named step of a model. `apply` returns the states that follow; none if its guard does not hold."""

    name: str
    apply: Callable[[Any], Iterable[Any]]
    fault: bool = False
    """A fault may happen, but nothing may depend on it to go on."""


class Step(NamedTuple):
    """One step of a trace."""

    transition: str
    state: Any


@dataclass(frozen=True)
class Exploration:
    """What was explored. Traces start with the initial state, under the name `start`."""

    states: int
    transitions: int
    depth: int
    violations: dict[str, list[Step]]
    """The shortest trace to each kind of violation."""
    stuck: int
    """Number of states from which no goal can be reached without further faults."""
    stuck_trace: list[Step] | None
    taken: frozenset[str]
    """The transitions that were taken at least once."""
    truncated: bool
    """Whether `limit` ended the search."""

    def __str__(self) -> str:
        return (
            f"{self.states} states, {self.transitions} transitions, depth {self.depth}, "
            f"violations: {', '.join(sorted(self.violations)) or 'none'}, stuck: {self.stuck}"
        )


def explore(
    initial: Hashable,
    transitions: Sequence[Transition],
    violation: Callable[[Any], str | None],
    goal: Callable[[Any], bool],
    *,
    select: Callable[[Any], Sequence[int]] | None = None,
    go_on: bool = False,
    until: str | None = None,
    limit: int | None = None,
) -> Exploration:
    """Visit every reachable state once.

    `select` returns the numbers of the transitions that may apply to a state; the guards of others are not
    tried.

    A state with a violation has no successors, and one that is a goal only with `go_on`. `until` ends the
    search at the first violation of that kind, `limit` after about that many states; states are then not
    searched for being stuck.
    """
    enabled = gc.isenabled()
    gc.disable()  # millions of tuples without cycles
    try:
        return _Search(initial, transitions, violation, goal, select).run(go_on, until, limit)
    finally:
        if enabled:
            gc.enable()


class _Search:
    def __init__(
        self,
        initial: Hashable,
        transitions: Sequence[Transition],
        violation: Callable[[Any], str | None],
        goal: Callable[[Any], bool],
        select: Callable[[Any], Sequence[int]] | None,
    ) -> None:
        self._transitions, self._violation, self._goal = transitions, violation, goal
        everything = range(len(transitions))
        self._select = select or (lambda _state: everything)
        self._numbers = {initial: 0}
        self._states: list[Any] = [initial]
        self._parents = array("q", [-1])
        self._by = array("h", [-1])
        # Transitions that are no faults: from, to.
        self._from, self._to = array("q"), array("q")
        self._goals = bytearray(1)
        self._count = 0
        self._taken = [False] * len(transitions)

    def run(self, go_on: bool, until: str | None, limit: int | None) -> Exploration:
        violations: dict[str, list[Step]] = {}
        number, depth, level_end = 0, 0, 1
        truncated = False
        while number < len(self._states):
            if number == level_end:
                depth, level_end = depth + 1, len(self._states)
            state = self._states[number]
            if (kind := self._violation(state)) is not None:
                self._goals[number] = 1
                if kind not in violations:
                    violations[kind] = self._trace(number)
                if kind == until:
                    truncated = True
                    break
            else:
                self._goals[number] = is_goal = self._goal(state)
                if go_on or not is_goal:
                    self._expand(number, state)
            number += 1
            if limit is not None and number >= limit:
                truncated = True
                break
        stuck = [] if truncated else self._stuck()
        return Exploration(
            states=len(self._states),
            transitions=self._count,
            depth=depth,
            violations=violations,
            stuck=len(stuck),
            stuck_trace=self._trace(stuck[0]) if stuck else None,
            taken=frozenset(t.name for t, taken in zip(self._transitions, self._taken, strict=True) if taken),
            truncated=truncated,
        )

    def _expand(self, number: int, state: Any) -> None:
        numbers, states = self._numbers, self._states
        for index in self._select(state):
            _, apply, fault = self._transitions[index]
            for following in apply(state):
                self._count += 1
                self._taken[index] = True
                known = numbers.get(following)
                if known is None:
                    known = numbers[following] = len(states)
                    states.append(following)
                    self._parents.append(number)
                    self._by.append(index)
                    self._goals.append(0)
                if not fault:
                    self._from.append(number)
                    self._to.append(known)

    def _stuck(self) -> list[int]:
        """The states from which no goal can be reached without a fault, in the order of their depth."""
        good, sources, targets = bytearray(self._goals), self._from, self._to
        changed = True
        while changed:
            changed = False
            for edge in range(len(sources) - 1, -1, -1):
                if good[targets[edge]] and not good[sources[edge]]:
                    good[sources[edge]] = changed = True
        return [number for number, reaches in enumerate(good) if not reaches]

    def _trace(self, number: int) -> list[Step]:
        steps = []
        while number >= 0:
            by = self._by[number]
            name = self._transitions[by].name if by >= 0 else "start"
            steps.append(Step(name, self._states[number]))
            number = self._parents[number]
        return steps[::-1]


def describe(trace: Sequence[Step]) -> str:
    """A trace for people: one line per step, with the fields that it changes."""
    lines = []
    before: Any = None
    for transition, state in trace:
        changes = []
        for name, value in state._asdict().items():
            old = None if before is None else getattr(before, name)
            if before is None or old == value:
                continue
            if hasattr(value, "_asdict"):
                inner = [
                    f"{name}.{key}={new}"
                    for key, new in value._asdict().items()
                    if old is None or getattr(old, key) != new
                ]
                changes += inner
            else:
                changes.append(f"{name}={value}")
        lines.append(f"{transition}: {', '.join(changes)}")
        before = state
    return "\n".join(lines)

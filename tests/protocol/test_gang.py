"""The recovery protocol of a gang, explored exhaustively within bounds, and mutations that must be found."""

import os

import pytest

from tests.protocol.gang import Gang, explore_gang
from tests.protocol.gang_model import Config
from tests.protocol.search import Exploration, describe

DEEP = os.environ.get("MEGATRON_PROTOCOL") == "all"
ONE_FAULT = Config(faults=1, gang_restarts=0)
WRITES = "a former Master writes"


def explanation(found: Exploration) -> str:
    """The counterexamples, for the test's output."""
    traces = {**found.violations, **({"stuck": found.stuck_trace} if found.stuck_trace else {})}
    return "\n".join([str(found), *(f"\n{kind}:\n{describe(trace)}" for kind, trace in traces.items())])


def require_sound(found: Exploration) -> None:
    print(found)
    assert not found.violations, explanation(found)
    assert found.stuck == 0, explanation(found)


@pytest.mark.parametrize(
    ("iterations", "states"),
    [(1, 400_000), pytest.param(2, 1_000_000, marks=pytest.mark.skipif(not DEEP, reason="make protocol"))],
)
def test_no_two_faults_break_the_gang(iterations: int, states: int) -> None:
    """One writer at a time, no checkpoint lost, no run stuck, in every order of any two faults."""
    config = Config(faults=2, iterations=iterations, gang_restarts=0)
    found = explore_gang(config)
    require_sound(found)
    assert found.states >= states
    never = {each.name for each in Gang(config).transitions} - found.taken
    assert never == NOT_WITH_TWO_PODS


NOT_WITH_TWO_PODS = {
    "restart_gang(master)",
    "load_alone(former_master)",
    "pass_barrier_alone(former_master)",
    "finish(former_master)",
}
"""Transitions of runs with one pod, and that of the operator, which these bounds exclude."""


def test_no_two_faults_break_a_run_with_one_pod() -> None:
    require_sound(explore_gang(Config(nodes=1, faults=2, gang_restarts=0)))


def test_a_gang_that_the_operator_restarts_recovers() -> None:
    require_sound(explore_gang(Config(faults=1, gang_restarts=1, kinds=frozenset(("pod", "node")))))


@pytest.mark.skipif(not DEEP, reason="make protocol")
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_restart_of_the_gang_and_two_faults_do_not_break_it(nodes: int) -> None:
    require_sound(explore_gang(Config(nodes=nodes, faults=2, iterations=nodes, gang_restarts=1)))


@pytest.mark.skipif(not DEEP, reason="make protocol")
@pytest.mark.parametrize("kinds", [("node", "freeze"), ("rank", "pod", "loss", "damage"), ("pod", "volume")])
def test_no_three_faults_of_these_kinds_break_the_gang(kinds: tuple[str, ...]) -> None:
    require_sound(explore_gang(Config(faults=3, iterations=1, gang_restarts=0, kinds=frozenset(kinds))))


@pytest.mark.parametrize(
    ("mutation", "violation"),
    [
        ({"fence": False}, WRITES),
        ({"check_before_files": False}, WRITES),
        ({"check_before_files": False, "check_before_save": False}, WRITES),
        ({"check_in_prepare": False}, WRITES),
        ({"check_generation": False}, "a former worker writes"),
        ({"fence_after_race": False, "nodes": 1}, "a complete checkpoint is lost"),
        ({"stop_before_join": False}, "a generation is planned while ranks of a pod run"),
        (
            {"swap": False, "faults": 2, "iterations": 1, "kinds": frozenset(("rank", "connection"))},
            "the generation goes back",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_mutation_of_the_protocol_violates_an_invariant(
    mutation: dict[str, object], violation: str
) -> None:
    found = explore_gang(ONE_FAULT._replace(**mutation), until=violation)
    assert violation in found.violations, found


@pytest.mark.parametrize("mutation", ["end_if_complete", "set_aside"])
def test_a_mutation_of_the_protocol_leaves_a_run_stuck(mutation: str) -> None:
    found = explore_gang(ONE_FAULT._replace(**{mutation: False}))
    assert found.stuck > 0, found


def test_a_process_frozen_between_a_check_and_its_write_is_the_known_gap() -> None:
    """No check of a file can prevent it: docs/decisions has what would."""
    found = explore_gang(ONE_FAULT._replace(freeze_anywhere=True))
    assert set(found.violations) == {WRITES, "a former worker writes"}
    assert found.stuck == 0

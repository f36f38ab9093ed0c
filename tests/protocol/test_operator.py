"""Two operators that may be killed or frozen between any two requests, with the product's decisions."""

import pytest

from tests.protocol.operator_model import Bounds, explore_operators
from tests.protocol.search import describe


def test_two_operators_do_not_charge_one_hang_twice() -> None:
    found = explore_operators(Bounds(failures=1))
    print(found)
    assert not found.violations, "\n".join(map(describe, found.violations.values()))
    assert found.stuck == 0, describe(found.stuck_trace or [])
    assert {"kill_operator(first)", "act(first)", "hang", "save"} <= found.taken


@pytest.mark.parametrize(
    "mutation",
    [{"status_first": False}, {"versions": False}, {"remembers": False}],
    ids=["acts-before-it-writes", "overwrites-a-changed-status", "forgets-what-it-deletes"],
)
def test_a_mutation_of_the_operator_charges_a_failure_twice(mutation: dict[str, bool]) -> None:
    found = explore_operators(Bounds()._replace(**mutation), until="a failure is charged twice")
    assert "a failure is charged twice" in found.violations, found

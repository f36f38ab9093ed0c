"""Notes about memory describe the estimate that the plan carries, not the one of the search before it."""

import pytest
from megatron_operator.api.status import MemoryPerGpu
from megatron_operator.planner.estimate.hardware import GIB
from megatron_operator.planner.notes import with_memory_warnings

SEARCHED = [
    "TP 2: the smallest that fits",
    "memory is tight: 78.9 of 80.0 GiB estimated, and more may be needed",
]


def estimate(gib: float) -> MemoryPerGpu:
    return MemoryPerGpu(
        weights=int(gib * GIB),
        **{"gradients": 0, "optimizer": 0, "activations": 0, "other": 0},
        total=int(gib * GIB),
        capacity=80 * GIB,
    )


@pytest.mark.parametrize(
    ("gib", "expected"),
    [
        (60, []),
        (78, ["memory is tight: 78.0 of 80.0 GiB estimated, and an estimate may be 5% too low"]),
        (82, ["memory may not suffice: 82.0 GiB estimated, 80.0 GiB available"]),
    ],
)
def test_the_warning_of_the_search_is_replaced_by_that_of_the_plan(gib: float, expected: list[str]) -> None:
    assert with_memory_warnings(SEARCHED, estimate(gib)) == [SEARCHED[0], *expected]


def test_a_layout_without_a_warning_of_the_search_gets_none_for_being_tight() -> None:
    assert with_memory_warnings(SEARCHED[:1], estimate(78)) == SEARCHED[:1]

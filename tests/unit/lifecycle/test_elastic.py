"""On how many accelerators an elastic run can continue, and since when more are available."""

import pytest
from megatron_operator.lifecycle.elastic import LargerCount, largest_fitting_count, track_larger_count


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(100, 64), (64, 64), (63, 56), (57, 56), (40, 32), (31, None), (0, None)],
)
def test_the_count_is_of_whole_nodes_within_the_capacity(capacity: int, expected: int | None) -> None:
    # The planner rejects 48 and 40, which do not divide the batch.
    fits = largest_fitting_count(
        capacity, requested=64, min_count=32, per_node=8, accepts=lambda n: n not in (40, 48)
    )
    assert fits == expected


def test_the_planner_is_asked_from_the_largest_count_down_until_it_accepts() -> None:
    asked: list[int] = []

    def accepts(count: int) -> bool:
        asked.append(count)
        return count == 16_368

    assert largest_fitting_count(16_380, requested=16_384, min_count=8, per_node=8, accepts=accepts) == 16_368
    assert asked == [16_376, 16_368]


@pytest.mark.parametrize(("capacity", "expected"), [(4, 4), (8, 4), (3, None)])
def test_a_run_smaller_than_a_node_fits_or_does_not(capacity: int, expected: int | None) -> None:
    assert (
        largest_fitting_count(capacity, requested=4, min_count=1, per_node=8, accepts=lambda _: True)
        == expected
    )


def test_a_larger_count_is_tracked_from_when_it_became_available() -> None:
    known = track_larger_count(None, count=32, fits=48, now=100.0)
    assert known == LargerCount(48, 100.0)
    assert track_larger_count(known, count=32, fits=48, now=200.0) == LargerCount(48, 100.0)


def test_additional_capacity_does_not_reset_the_time() -> None:
    assert track_larger_count(LargerCount(48, 100.0), count=32, fits=64, now=200.0) == LargerCount(48, 100.0)


def test_a_smaller_larger_count_keeps_the_time() -> None:
    assert track_larger_count(LargerCount(64, 100.0), count=32, fits=48, now=200.0) == LargerCount(48, 100.0)


@pytest.mark.parametrize("fits", [None, 16, 32])
def test_capacity_that_is_gone_is_no_longer_tracked(fits: int | None) -> None:
    assert track_larger_count(LargerCount(64, 100.0), count=32, fits=fits, now=200.0) is None


def test_a_count_that_the_run_has_grown_to_is_no_longer_tracked() -> None:
    assert track_larger_count(LargerCount(48, 100.0), count=48, fits=64, now=200.0) == LargerCount(64, 200.0)

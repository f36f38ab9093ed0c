"""Which node measurements show to be at fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron_trainer.health.node_faults import (
    DeviceReport,
    judge_devices,
    judge_pairs,
    retests,
    ring,
)


def gang(*rates: float, digests: str = "") -> dict[int, list[DeviceReport]]:
    """One rank on each node, by its rate, with its digest if there are any."""
    digests = digests or "a" * len(rates)
    return {
        node: [DeviceReport(node, digest=digest, product_rate=rate)]
        for node, (rate, digest) in enumerate(zip(rates, digests, strict=True))
    }


def exchange(nodes: int, broken: set[int], links: frozenset[tuple[int, int]] = frozenset()) -> dict[int, str]:
    """The verdict on a gang of which some nodes, or links between two, do not work."""
    turns, results = ring(nodes), {}
    for _ in range(3):
        for pair in (pair for turn in turns for pair in turn):
            results[pair] = "timed out" if broken & set(pair) or pair in links else ""
        turns = [retests(nodes, results)]
    return judge_pairs(nodes, results)


def test_a_device_far_below_the_median_is_at_fault() -> None:
    (fault,) = judge_devices(gang(600, 610, 250, 590), "gpu").items()
    assert fault == (2, "rank 2: product: 250 TFLOP/s, the median of all ranks is 595")


@pytest.mark.parametrize(
    ("rates", "platform"),
    [
        pytest.param((600, 610, 420, 590), "gpu", id="a device that is a third slower"),
        pytest.param((0.06, 0.05, 0.012, 0.06), "cpu", id="a processor shared with others"),
        pytest.param((600, 10), "gpu", id="two ranks, of which either may be the usual one"),
        pytest.param((600, 200, 210), "gpu", id="one that is faster than the others"),
        pytest.param((600,), "gpu", id="one rank alone"),
    ],
)
def test_nobody_is_at_fault_for(rates: tuple[float, ...], platform: str) -> None:
    assert judge_devices(gang(*rates), platform) == {}


def test_a_device_with_another_product_than_most_is_at_fault() -> None:
    assert judge_devices(gang(1, 1, 1, digests="aba"), "gpu") == {
        1: "rank 1 got a different product than 2 of 3 ranks"
    }


def test_of_two_different_products_neither_is_wrong() -> None:
    assert judge_devices(gang(1, 1, digests="ab"), "gpu") == {}


def test_a_slow_link_between_devices_is_its_nodes_fault() -> None:
    reports = {
        node: [DeviceReport(2 * node + local, copy_rate=40 if (node, local) == (1, 1) else 400)]
        for node in range(3)
        for local in range(2)
    }
    assert judge_devices(reports, "gpu").keys() == {1}


@pytest.mark.parametrize(
    ("failed", "at_fault"),
    [
        pytest.param({1}, {1}, id="on one of four nodes"),
        pytest.param({0, 1}, set(), id="on half of the nodes"),
        pytest.param({0, 1, 2, 3}, set(), id="in a network that has none"),
    ],
)
def test_a_network_loopback_that_fails(failed: set[int], at_fault: set[int]) -> None:
    reports = {
        node: [DeviceReport(node, loopback_error="refused" if node in failed else "")] for node in range(4)
    }
    assert judge_devices(reports, "gpu").keys() == at_fault


@pytest.mark.parametrize("nodes", range(2, 12))
def test_in_each_turn_of_the_ring_a_node_has_one_pair(nodes: int) -> None:
    pairs = [pair for turn in ring(nodes) for pair in turn]
    assert all(len({node for pair in turn for node in pair}) == 2 * len(turn) for turn in ring(nodes))
    assert len(pairs) == len(set(pairs))
    assert all(sum(node in pair for pair in pairs) == min(2, nodes - 1) for node in range(nodes))


@pytest.mark.parametrize("nodes", range(3, 12))
def test_a_node_without_a_working_network_is_found(nodes: int) -> None:
    for broken in range(nodes):
        (found,) = exchange(nodes, {broken}).items()
        assert found[0] == broken
        assert found[1].endswith("(timed out)")


@pytest.mark.parametrize("broken", [{1, 2}, {0, 2}, {1, 3, 5}])
def test_several_such_nodes_are_found_and_the_one_between_them_is_not_blamed(broken: set[int]) -> None:
    assert exchange(8, broken).keys() == broken


def test_a_link_that_fails_between_two_healthy_nodes_names_nobody() -> None:
    assert exchange(6, set(), frozenset({(2, 3)})) == {}


@pytest.mark.parametrize("broken", [set(), {0}, {0, 1}])
def test_of_two_nodes_nobody_is_named(broken: set[int]) -> None:
    assert exchange(2, broken) == {}


@given(st.integers(2, 24), st.data())
def test_a_node_that_exchanges_with_others_is_never_named(nodes: int, data: st.DataObject) -> None:
    broken = data.draw(st.sets(st.integers(0, nodes - 1)))
    link = data.draw(st.sampled_from([pair for turn in ring(nodes) for pair in turn]))
    named = exchange(nodes, broken).keys()
    assert named <= broken
    if len(broken) == 1 and nodes > 2:
        assert named == broken
    assert exchange(nodes, set(), frozenset({link})) == {}

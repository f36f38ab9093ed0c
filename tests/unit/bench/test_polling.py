"""The table of bench.polling."""

from bench.polling import Scenario, measure, targets


async def test_a_scenario_is_one_line_whatever_was_polled() -> None:
    words = (await measure(Scenario("beside", 2, 1, 1), 0.05)).split()
    name, healthy, fewest, to, most, silent, cpu = words
    assert (name, to) == ("beside", "to")
    assert int(fewest) <= int(most)
    assert min(int(healthy), int(silent), float(cpu)) >= 0


def test_pods_of_a_run_have_ranks_in_order_and_the_first_are_silent() -> None:
    assert [(each.pod, each.node_rank) for each in targets(2, 1)] == [
        ("silent-0", 0),
        ("silent-1", 1),
        ("pod-0", 2),
    ]

"""What bench.gang reports of the events that its launchers record."""

from bench.gang import Seen, report

SILENT = "seconds until all have noticed a silent pod (limit 15)"


def complete() -> Seen:
    """Three launchers that went through all phases; node 1 reports the failure and then falls silent."""
    return {
        "begin": {0: 100.0},
        "met": {0: 101.0, 1: 102.5, 2: 102.0},
        "rate": {0: 2.0, 1: 1.0, 2: 0.5},
        "reported": {1: 110.0},
        "noticed": {0: 110.1, 1: 110.0, 2: 110.4},
        "met again": {0: 111.0, 1: 111.5, 2: 113.0},
        "lost": {0: 127.0, 2: 127.5},
    }


def test_each_phase_ends_with_its_slowest_launcher() -> None:
    printed = report(complete(), 3)
    assert printed["seconds until all have started and met"] == "2.50"
    assert printed["seconds until all have noticed a failure"] == "0.40"
    assert printed["seconds until all have met again"] == "3.00"
    assert printed[SILENT] == "16.00", "since the silent launcher met the others"


def test_node_0_is_not_counted_among_the_launchers_whose_operations_are_averaged() -> None:
    printed = report(complete(), 3)
    assert printed["operations a second of a launcher"] == "0.75"
    assert printed["operations a second of node 0"] == "2.00"
    assert printed["operations a second of the store"] == "4", "of all three"


def test_a_phase_that_not_all_have_ended_has_their_number() -> None:
    seen = complete()
    del seen["met again"][2], seen["lost"]
    printed = report(seen, 3)
    assert printed["seconds until all have met again"] == "only 2 of 3"
    assert printed[SILENT] == "only 0 of 2"


def test_a_gang_that_never_met_has_no_figures() -> None:
    printed = report({"begin": {0: 100.0}}, 3)
    assert printed["seconds until all have started and met"] == "only 0 of 3"
    assert printed["operations a second of a launcher"] == "none"
    assert printed["launchers that lost the store meanwhile"] == "0"


def test_launchers_that_lost_the_store_are_counted_once() -> None:
    assert (
        report(complete() | {"store lost": {2: 105.0}}, 3)["launchers that lost the store meanwhile"] == "1"
    )

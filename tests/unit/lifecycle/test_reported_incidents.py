"""The trainer's own incidents, and the operator's of the same failure: told once."""

from typing import Any

import pytest
from megatron_operator.api.status import Incident, RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle import (
    Place,
    PodEnd,
    Replaced,
    gang_restarted,
    goodput,
    pods_replaced,
    reported,
    trained,
)

NOW = 1_800_000_000.0
FRESH = RecoveryStatus()
PLACES = {0: Place("master-0", "node-0"), 1: Place("worker-0", "node-1")}


def told(generation: int = 2, kind: str = "rank", at: float = NOW, **fields: Any) -> dict[str, Any]:
    return {
        "generation": generation,
        "kind": kind,
        "nodeRank": 1,
        "rank": 3,
        "cause": "rank 3 was killed by SIGKILL",
        "iteration": 50,
        "resumedFrom": 40,
        "lastStepAt": at - 1.5,
        "detectedAt": at,
        "metAt": at + 10,
        "loadedAt": at + 14,
        "firstStepAt": at + 15,
        "caughtUpAt": at + 25,
    } | fields


def take(
    recovery: RecoveryStatus, *incidents: dict[str, Any], bound_at: float | None = None
) -> RecoveryStatus:
    return reported(recovery, incidents, PLACES, bound_at=bound_at, checkpoint=40)


def last(recovery: RecoveryStatus) -> Incident:
    assert recovery.last_incident is not None
    return recovery.last_incident


def parts(incident: Incident) -> tuple[float | None, ...]:
    seconds = incident.seconds
    return seconds.detect, seconds.schedule, seconds.start, seconds.load, seconds.redo


def test_a_rank_restart_is_told_with_its_pod_node_rank_and_times() -> None:
    recovery = take(FRESH, told())
    incident = last(recovery)
    assert (incident.kind, incident.pod, incident.node, incident.rank) == ("rank", "worker-0", "node-1", 3)
    assert (incident.cause, incident.generation) == ("rank 3 was killed by SIGKILL", 2)
    assert (incident.iteration, incident.resumed_from, incident.lost_iterations) == (50, 40, 10)
    assert parts(incident) == (1.5, 0.0, 10.0, 5.0, 10.0)
    assert seconds(incident.recovered_at) == NOW + 15
    assert recovery.lost_iterations == 10
    assert recovery.lost_seconds == incident.seconds
    assert recovery.node_failures == {"node-1": 1}
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (0, 0), "pods stayed"


def test_the_same_report_again_changes_nothing() -> None:
    recovery = take(FRESH, told(2), told(3, at=NOW + 100))
    assert take(recovery, told(2), told(3, at=NOW + 100)) == recovery
    assert len(recovery.history) == 2


def test_a_report_that_grows_is_told_as_it_grows_and_summed_once() -> None:
    growing = [
        told(firstStepAt=None, caughtUpAt=None),
        told(caughtUpAt=None),
        told(),
        told(),
    ]
    recovery = FRESH
    for report in growing:
        recovery = take(recovery, report)
    assert recovery == take(FRESH, told())


def test_a_replaced_pod_that_both_saw_is_one_incident() -> None:
    end = PodEnd("worker-0: out of memory", 137, node="node-7")
    recovery = pods_replaced(FRESH, [Replaced("worker-0", end)], NOW + 3, checkpoint=40, iteration=49)
    report = told(kind="pod", rank=None, cause="the launcher of node 1 is gone")
    recovery = take(recovery, report, bound_at=NOW + 6)
    incident = last(recovery)
    assert len(recovery.history) == 1
    assert (incident.cause, incident.node, incident.exit_code) == ("worker-0: out of memory", "node-7", 137)
    assert parts(incident) == (1.5, 6.0, 4.0, 5.0, 10.0)
    assert (incident.generation, incident.iteration) == (2, 50)
    assert recovery.node_failures == {"node-7": 1}
    assert take(recovery, report, bound_at=NOW + 6) == recovery


def test_the_trainers_word_may_come_after_the_run_was_seen_training_again() -> None:
    recovery = pods_replaced(FRESH, [Replaced("worker-0", None)], NOW + 3, checkpoint=40, iteration=50)
    recovery = take(trained(recovery, NOW + 20, resumed_from=40), told(kind="pod"))
    assert len(recovery.history) == 1
    assert recovery.lost_iterations == 10


def test_the_operators_word_may_come_after_the_trainers() -> None:
    recovery = take(FRESH, told(kind="pod", rank=None, firstStepAt=None, caughtUpAt=None))
    end = PodEnd("worker-0: out of memory", 137, node="node-7")
    recovery = pods_replaced(recovery, [Replaced("worker-0", end)], NOW + 5, checkpoint=40, iteration=50)
    assert len(recovery.history) == 1
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 1)
    assert (last(recovery).cause, last(recovery).node) == ("worker-0: out of memory", "node-7")


def test_a_pod_that_is_replaced_soon_after_another_is_an_incident_of_its_own() -> None:
    recovery = pods_replaced(FRESH, [Replaced("worker-0", None)], NOW + 3, checkpoint=40, iteration=50)
    first = told(2, kind="pod")
    recovery = trained(take(recovery, first), NOW + 15, resumed_from=40)
    recovery = pods_replaced(recovery, [Replaced("master-0", None)], NOW + 30, checkpoint=40, iteration=55)
    recovery = take(recovery, first)
    assert [each.generation for each in recovery.history] == [2, None], "the first one is told already"
    recovery = take(recovery, first, told(3, kind="pod", at=NOW + 28))
    assert [each.generation for each in recovery.history] == [2, 3]


def test_a_rank_that_dies_long_after_a_pod_was_replaced_is_another_incident() -> None:
    recovery = pods_replaced(FRESH, [Replaced("worker-0", None)], NOW, checkpoint=40, iteration=50)
    recovery = take(trained(recovery, NOW + 20, resumed_from=40), told(at=NOW + 500))
    assert [each.kind for each in recovery.history] == ["pod", "rank"]


def test_a_gang_restart_learns_from_the_trainer_who_hung() -> None:
    recovery = gang_restarted(FRESH, "no new iteration for 121 s", NOW + 2, checkpoint=40, iteration=50)
    recovery = take(recovery, told(kind="hang", cause="rank 3 is behind"))
    assert last(recovery).cause == "no new iteration for 121 s; rank 3 is behind"
    assert len(recovery.history) == 1


def test_a_hang_that_the_trainer_found_is_paid_for() -> None:
    recovery = take(FRESH, told(kind="hang", cause="rank 3 is behind"))
    assert recovery.restarts_since_checkpoint == 1
    assert recovery.first_cause == "rank 3 is behind"
    assert recovery.node_failures == {"node-1": 1}


def test_a_loss_that_is_not_finite_is_no_nodes_fault() -> None:
    assert take(FRESH, told(kind="loss")).node_failures == {}


def test_a_pod_that_is_gone_does_not_blame_the_node_of_its_replacement() -> None:
    recovery = take(FRESH, told(kind="pod", rank=None))
    assert recovery.node_failures == {}
    assert (last(recovery).pod, last(recovery).node) == ("worker-0", None)


def test_a_pod_that_was_replaced_after_its_rank_died_does_not_blame_its_new_node() -> None:
    places = {1: Place("worker-0", "node-2", since=NOW + 5)}
    recovery = reported(FRESH, [told()], places, bound_at=NOW + 5, checkpoint=40)
    assert (last(recovery).pod, last(recovery).node, recovery.node_failures) == ("worker-0", None, {})


def test_reports_older_than_what_is_kept_are_not_told_again() -> None:
    recovery = take(FRESH, told(9))
    assert take(recovery, told(2), told(9)) == recovery


@pytest.mark.parametrize(
    "report",
    [{}, {"generation": 2}, told(detectedAt=None), told(generation=None)],
)
def test_a_report_that_says_too_little_is_passed_over(report: dict[str, Any]) -> None:
    assert take(FRESH, report) == FRESH


def test_a_report_with_nothing_but_its_time_is_taken() -> None:
    recovery = take(FRESH, {"generation": 2, "kind": "new-kind", "detectedAt": NOW})
    assert (last(recovery).kind, last(recovery).pod) == ("pod", None)


def test_a_run_has_come_back_from_an_incident_that_a_further_one_cut_short() -> None:
    # A rank is killed, and the checkpoint that the ranks go on from cannot be loaded: they never step.
    cut_short = told(2, metAt=NOW + 2, loadedAt=None, firstStepAt=None, caughtUpAt=None)
    recovery = take(FRESH, cut_short)
    assert last(recovery).recovered_at is None
    recovery = take(recovery, cut_short, told(3, at=NOW + 5))
    assert [seconds(each.recovered_at) for each in recovery.history] == [NOW + 20, NOW + 20]
    assert recovery.lost_seconds.load == 5.0
    assert take(recovery, cut_short, told(3, at=NOW + 5)) == recovery


@pytest.mark.parametrize(
    ("useful", "begun", "expected"),
    [
        (90.0, NOW - 100, 0.9),
        (200.0, NOW - 100, 1.0),
        (None, NOW - 100, None),
        (1.0, None, None),
        (1.0, NOW, None),
    ],
)
def test_goodput_is_useful_time_over_wall_time(
    useful: float | None, begun: float | None, expected: float | None
) -> None:
    assert goodput({"usefulSeconds": useful, "firstStartedAt": begun}, NOW) == expected

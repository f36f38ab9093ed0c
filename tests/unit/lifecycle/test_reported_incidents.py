"""Incidents that the trainer reports, and the operator's own of the same failure: recorded once."""

from typing import Any

import pytest
from megatron_contract.incident import ReportedIncident
from megatron_contract.progress import ProgressReport
from megatron_operator.api.recovery_status import Incident, RecoveryStatus
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.incidents import (
    PodReplacement,
    gang_restarted,
    pods_replaced,
    recovered,
    resized_by_edit,
)
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.reported_incidents import PodPlacement, add_reported_incidents, goodput

NOW = 1_800_000_000.0
FRESH = RecoveryStatus()
PLACES = {0: PodPlacement("master-0", "node-0"), 1: PodPlacement("worker-0", "node-1")}


def incident_report(
    generation: int = 2, kind: str = "rank", at: float = NOW, **fields: Any
) -> ReportedIncident:
    values = {
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
    }
    return ReportedIncident.from_json(values | fields)


def take(
    recovery: RecoveryStatus,
    *incidents: ReportedIncident,
    bound_at: float | None = None,
    job_began: float = 0.0,
) -> RecoveryStatus:
    return add_reported_incidents(
        recovery, incidents, PLACES, bound_at=bound_at, checkpoint=40, job_began=job_began
    )


def stop_report(job_began: float) -> ReportedIncident:
    """Of pods that were stopped at NOW, and trained again in a job that began then."""
    fields = {"rank": None, "cause": "SIGTERM: saved", "resumedFrom": 50, "metAt": job_began + 10}
    stepped = {"firstStepAt": job_began + 15, "caughtUpAt": job_began + 15}
    return incident_report(2, "stop", NOW, **fields, **stepped)


def last(recovery: RecoveryStatus) -> Incident:
    assert recovery.last_incident is not None
    return recovery.last_incident


def parts(incident: Incident) -> tuple[float | None, ...]:
    seconds = incident.seconds
    return seconds.detect, seconds.schedule, seconds.start, seconds.load, seconds.redo


def test_a_rank_restart_is_recorded_with_its_pod_node_rank_and_times() -> None:
    recovery = take(FRESH, incident_report())
    incident = last(recovery)
    assert (incident.kind, incident.pod, incident.node, incident.rank) == ("rank", "worker-0", "node-1", 3)
    assert (incident.cause, incident.generation) == ("rank 3 was killed by SIGKILL", 2)
    assert (incident.iteration, incident.resumed_from, incident.lost_iterations) == (50, 40, 10)
    assert parts(incident) == (1.5, 0.0, 10.0, 5.0, 10.0)
    assert seconds(incident.recovered_at) == NOW + 15
    assert recovery.lost_iterations == 10
    assert recovery.lost_seconds == incident.seconds
    assert recovery.node_failures == {}, "a rank may die of its program"
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (0, 0), "pods stayed"


def test_the_same_report_again_changes_nothing() -> None:
    recovery = take(FRESH, incident_report(2), incident_report(3, at=NOW + 100))
    assert take(recovery, incident_report(2), incident_report(3, at=NOW + 100)) == recovery
    assert len(recovery.history) == 2


def test_a_report_that_grows_updates_the_incident_and_the_totals() -> None:
    growing = [
        incident_report(firstStepAt=None, caughtUpAt=None),
        incident_report(caughtUpAt=None),
        incident_report(),
        incident_report(),
    ]
    recovery = FRESH
    for report in growing:
        recovery = take(recovery, report)
    assert recovery == take(FRESH, incident_report())


def test_a_replaced_pod_that_trainer_and_operator_observed_is_one_incident() -> None:
    end = PodEnd("worker-0: out of memory", 137, node="node-7")
    recovery = pods_replaced(FRESH, [PodReplacement("worker-0", end)], NOW + 3, checkpoint=40, iteration=49)
    report = incident_report(kind="pod", rank=None, cause="the launcher of node 1 is gone")
    recovery = take(recovery, report, bound_at=NOW + 6)
    incident = last(recovery)
    assert len(recovery.history) == 1
    assert (incident.cause, incident.node, incident.exit_code) == ("worker-0: out of memory", "node-7", 137)
    assert parts(incident) == (1.5, 6.0, 4.0, 5.0, 10.0)
    assert (incident.generation, incident.iteration) == (2, 50)
    assert recovery.node_failures == {}
    assert take(recovery, report, bound_at=NOW + 6) == recovery


def test_the_trainers_report_may_arrive_after_the_run_trains_again() -> None:
    recovery = pods_replaced(FRESH, [PodReplacement("worker-0", None)], NOW + 3, checkpoint=40, iteration=50)
    recovery = take(recovered(recovery, NOW + 20, resumed_from=40), incident_report(kind="pod"))
    assert len(recovery.history) == 1
    assert recovery.lost_iterations == 10


def test_the_operators_observation_may_follow_the_trainers_report() -> None:
    recovery = take(FRESH, incident_report(kind="pod", rank=None, firstStepAt=None, caughtUpAt=None))
    end = PodEnd("worker-0: out of memory", 137, node="node-7")
    recovery = pods_replaced(
        recovery, [PodReplacement("worker-0", end)], NOW + 5, checkpoint=40, iteration=50
    )
    assert len(recovery.history) == 1
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 1)
    assert (last(recovery).cause, last(recovery).node) == ("worker-0: out of memory", "node-7")


def test_a_pod_that_is_replaced_soon_after_another_is_a_separate_incident() -> None:
    recovery = pods_replaced(FRESH, [PodReplacement("worker-0", None)], NOW + 3, checkpoint=40, iteration=50)
    first = incident_report(2, kind="pod")
    recovery = recovered(take(recovery, first), NOW + 15, resumed_from=40)
    recovery = pods_replaced(
        recovery, [PodReplacement("master-0", None)], NOW + 30, checkpoint=40, iteration=55
    )
    recovery = take(recovery, first)
    assert [each.generation for each in recovery.history] == [2, None], "the first report is already recorded"
    recovery = take(recovery, first, incident_report(3, kind="pod", at=NOW + 28))
    assert [each.generation for each in recovery.history] == [2, 3]


def test_a_rank_that_dies_long_after_a_pod_was_replaced_is_another_incident() -> None:
    recovery = pods_replaced(FRESH, [PodReplacement("worker-0", None)], NOW, checkpoint=40, iteration=50)
    recovery = take(recovered(recovery, NOW + 20, resumed_from=40), incident_report(at=NOW + 500))
    assert [each.kind for each in recovery.history] == ["pod", "rank"]


def test_the_cause_of_a_gang_restart_is_completed_with_the_rank_that_hung() -> None:
    recovery = gang_restarted(FRESH, "no new iteration for 121 s", NOW + 2, checkpoint=40, iteration=50)
    recovery = take(recovery, incident_report(kind="hang", cause="rank 3 is behind"))
    assert last(recovery).cause == "no new iteration for 121 s; rank 3 is behind"
    assert len(recovery.history) == 1


def test_a_hang_that_the_trainer_detected_costs_a_restart() -> None:
    recovery = take(FRESH, incident_report(kind="hang", cause="rank 3 is behind"))
    assert recovery.restarts_since_checkpoint == 1
    assert recovery.first_cause == "rank 3 is behind"
    assert recovery.node_failures == {}, "nothing shows that the node is at fault"


def test_a_hang_that_is_learned_of_after_a_newer_checkpoint_costs_no_restart() -> None:
    hangs = [
        incident_report(each, kind="hang", at=NOW + 600 * each, resumedFrom=5 * each) for each in range(2, 9)
    ]
    recovery = take(FRESH, *hangs)
    assert recovery.restarts_by_kind.hang == 7
    assert recovery.restarts_since_checkpoint == 1, "the last one resumed from the newest checkpoint, 40"


def test_hangs_of_a_run_without_a_checkpoint_cost_restarts() -> None:
    hangs = [incident_report(each, kind="hang", at=NOW + 600 * each, resumedFrom=None) for each in (2, 3)]
    recovery = add_reported_incidents(FRESH, hangs, PLACES, bound_at=None, checkpoint=None)
    assert recovery.restarts_since_checkpoint == 2


@pytest.mark.parametrize("pause", [-5, 5, 28_800], ids=["clocks differ", "edit", "suspension"])
def test_pods_that_were_stopped_before_the_job_began_are_no_interruption(pause: float) -> None:
    began = NOW + pause
    assert take(FRESH, stop_report(began), bound_at=began + 4, job_began=began) == FRESH


def test_pods_of_the_job_that_are_stopped_are_an_interruption() -> None:
    recovery = take(FRESH, stop_report(NOW), bound_at=NOW + 4, job_began=NOW - 3600)
    assert (last(recovery).kind, parts(last(recovery))) == ("pod", (1.5, 4.0, 6.0, 5.0, 0.0))


def test_pods_that_save_for_minutes_before_a_resize_are_a_part_of_it() -> None:
    recovery = resized_by_edit(FRESH, "accelerator.count was edited", NOW - 300, iteration=50)
    recovery = take(recovery, stop_report(NOW + 5), bound_at=NOW + 9, job_began=NOW + 5)
    assert [each.kind for each in recovery.history] == ["resize"]
    assert parts(last(recovery)) == (1.5, 4.0, 6.0, 5.0, 0.0)


def test_a_run_that_is_suspended_while_it_recovers_was_interrupted_once() -> None:
    lost_pod = PodReplacement("worker-0", None)
    recovery = pods_replaced(FRESH, [lost_pod], NOW - 900, checkpoint=40, iteration=50)
    night = NOW + 28_800
    recovery = take(recovery, stop_report(night), bound_at=night + 4, job_began=night)
    assert [each.kind for each in recovery.history] == ["pod"]
    assert parts(last(recovery)) == (1.5, 4.0, 6.0, 5.0, 0.0), "the time without a job is not lost to it"


def test_a_suspension_is_no_part_of_an_incident_that_the_run_has_recovered_from() -> None:
    before = pods_replaced(FRESH, [PodReplacement("worker-0", None)], NOW - 900, checkpoint=40, iteration=50)
    before = recovered(before, NOW - 800, resumed_from=40)
    night = NOW + 28_800
    assert take(before, stop_report(night), bound_at=night + 4, job_began=night) == before


def test_a_pod_that_is_lost_soon_after_a_suspension_keeps_its_own_report() -> None:
    night = NOW + 28_800
    lost_pod = PodReplacement("worker-0", None)
    before = pods_replaced(FRESH, [lost_pod], night + 40, checkpoint=40, iteration=50)
    lost = incident_report(3, kind="pod", at=night + 38)
    recovery = take(before, stop_report(night), lost, bound_at=night + 44, job_began=night)
    assert [(each.kind, each.generation) for each in recovery.history] == [("pod", 3)]


def test_a_rank_that_died_just_before_a_suspension_does_not_lose_the_pause() -> None:
    night = NOW + 28_800
    report = incident_report(metAt=night + 10, firstStepAt=night + 15, caughtUpAt=night + 25)
    recovery = take(FRESH, report, bound_at=night + 4, job_began=night)
    assert parts(last(recovery)) == (1.5, 0.0, 10.0, 5.0, 10.0)
    assert take(recovery, report, bound_at=night + 4, job_began=night) == recovery


def test_a_loss_that_is_not_finite_is_no_failure_of_a_node() -> None:
    assert take(FRESH, incident_report(kind="loss")).node_failures == {}


def test_the_node_of_a_replacement_is_not_blamed_for_the_lost_pod() -> None:
    recovery = take(FRESH, incident_report(kind="pod", rank=None))
    assert recovery.node_failures == {}
    assert (last(recovery).pod, last(recovery).node) == ("worker-0", None)


def test_the_new_node_of_a_pod_is_not_blamed_for_a_rank_that_died_before() -> None:
    places = {1: PodPlacement("worker-0", "node-2", since=NOW + 5)}
    recovery = add_reported_incidents(FRESH, [incident_report()], places, bound_at=NOW + 5, checkpoint=40)
    assert (last(recovery).pod, last(recovery).node, recovery.node_failures) == ("worker-0", None, {})


def test_reports_older_than_the_history_are_not_recorded_again() -> None:
    recovery = take(FRESH, incident_report(9))
    assert take(recovery, incident_report(2), incident_report(9)) == recovery


def test_a_report_of_an_unknown_kind_counts_as_a_lost_pod() -> None:
    recovery = take(FRESH, ReportedIncident(2, NOW, "new-kind"))
    assert (last(recovery).kind, last(recovery).pod) == ("pod", None)


def test_a_run_recovers_from_an_incident_together_with_the_next_one() -> None:
    # A rank is killed, and the ranks cannot load the checkpoint: they complete no step.
    interrupted = incident_report(2, metAt=NOW + 2, loadedAt=None, firstStepAt=None, caughtUpAt=None)
    recovery = take(FRESH, interrupted)
    assert last(recovery).recovered_at is None
    recovery = take(recovery, interrupted, incident_report(3, at=NOW + 5))
    assert [seconds(each.recovered_at) for each in recovery.history] == [NOW + 20, NOW + 20]
    assert recovery.lost_seconds.load == 5.0
    assert take(recovery, interrupted, incident_report(3, at=NOW + 5)) == recovery


@pytest.mark.parametrize(
    ("useful", "started", "expected"),
    [
        (90.0, NOW - 100, 0.9),
        (200.0, NOW - 100, 1.0),
        (None, NOW - 100, None),
        (1.0, None, None),
        (1.0, NOW, None),
    ],
)
def test_goodput_is_useful_time_over_wall_time(
    useful: float | None, started: float | None, expected: float | None
) -> None:
    report = ProgressReport(1, "training", useful_seconds=useful, first_started_at=started)
    assert goodput(report, NOW) == expected

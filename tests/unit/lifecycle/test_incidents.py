"""Failures that the operator observes: one incident and one restart each, with the right node and cost."""

from typing import Any

import pytest
from megatron_contract.hardware import Evidence
from megatron_contract.incident import ReportedIncident
from megatron_operator.api.recovery_status import Incident, RecoveryStatus
from megatron_operator.api.times import seconds, timestamp
from megatron_operator.lifecycle.incident_history import added
from megatron_operator.lifecycle.incidents import (
    PodReplacement,
    checkpoint_saved,
    gang_restarted,
    node_lost,
    pods_replaced,
    recovered,
    resized,
)
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.reported_incidents import PodPlacement, add_reported_incidents

NOW = 1_800_000_000.0
FRESH = RecoveryStatus()
OOM = PodReplacement("worker-1", PodEnd("worker-1: out of memory", 137, node="node-1"))
PEER = PodReplacement("worker-2", PodEnd("worker-2: lost a peer (exit code 140)", 140, node="node-2"))
DRAINED = PodReplacement(
    "worker-1", PodEnd("worker-1: drained", 143, node="node-1", disruption="EvictionByEvictionAPI")
)
UNOBSERVED = PodReplacement("worker-1", None)


def replace_pods(
    recovery: RecoveryStatus, *replaced: PodReplacement, after: float = 0.0, checkpoint: int | None = 40
) -> RecoveryStatus:
    return pods_replaced(recovery, replaced, NOW + after, checkpoint=checkpoint, iteration=50)


def last(recovery: RecoveryStatus) -> Incident:
    assert recovery.last_incident is not None
    assert recovery.last_incident == recovery.history[-1]
    return recovery.last_incident


def counts(recovery: RecoveryStatus) -> tuple[int, int, int]:
    return recovery.restarts, recovery.restarts_since_checkpoint, len(recovery.history)


def test_a_pod_that_died_is_recorded_with_its_name_node_and_exit_code() -> None:
    recovery = replace_pods(FRESH, OOM)
    incident = last(recovery)
    assert (incident.kind, incident.pod, incident.node, incident.exit_code) == (
        "pod",
        "worker-1",
        "node-1",
        137,
    )
    assert (incident.cause, incident.iteration) == ("worker-1: out of memory", 50)
    assert seconds(incident.time) == NOW
    assert counts(recovery) == (1, 1, 1)
    assert recovery.restarts_by_kind.pod == 1
    assert (recovery.node_failures, recovery.node_evidence) == ({}, {}), "the program may need too much"
    assert recovery.first_cause == recovery.last_cause == "worker-1: out of memory"


def test_a_pod_that_only_lost_a_peer_is_not_the_cause() -> None:
    recovery = replace_pods(FRESH, PEER, OOM)
    assert last(recovery).pod == "worker-1"
    assert counts(recovery) == (1, 1, 1)


def test_pods_lost_shortly_after_each_other_count_as_one_restart() -> None:
    recovery = replace_pods(FRESH, UNOBSERVED)
    for index in range(2, 9):
        recovery = replace_pods(recovery, PodReplacement(f"worker-{index}", None), after=index)
    assert counts(recovery) == (1, 1, 1)


def test_the_cause_is_corrected_when_the_failed_pod_is_known_later() -> None:
    recovery = replace_pods(replace_pods(FRESH, PEER), OOM, after=5)
    assert (last(recovery).pod, last(recovery).cause) == ("worker-1", "worker-1: out of memory")
    assert recovery.last_cause == "worker-1: out of memory"
    assert counts(recovery) == (1, 1, 1)


def test_a_pod_that_dies_again_during_its_recovery_counts_again() -> None:
    recovery = FRESH
    for again in range(3):
        recovery = replace_pods(recovery, OOM, after=20.0 * again)
    assert counts(recovery) == (3, 3, 3)
    assert recovery.node_failures == {}


def test_a_replacement_that_was_replaced_before_it_ran_is_the_same_failure() -> None:
    recovery = replace_pods(FRESH, OOM)
    again = replace_pods(recovery, PodReplacement("worker-1", None, ran=False), after=1)
    assert again == recovery


def test_a_pod_that_never_ran_counts_where_no_failure_is_open() -> None:
    recovery = replace_pods(FRESH, PodReplacement("worker-1", None, ran=False))
    assert counts(recovery) == (1, 1, 1)


def test_two_pods_that_die_in_turn_spend_the_budget() -> None:
    recovery = FRESH
    for again in range(20):
        recovery = replace_pods(recovery, PodReplacement(f"worker-{again % 2}", OOM.end), after=30.0 * again)
    assert recovery.restarts_since_checkpoint >= 7


@pytest.mark.parametrize(
    "end",
    [
        DRAINED.end,
        PodEnd("worker-1: preempted", None, disruption="PreemptionByScheduler"),
        PodEnd("worker-1: terminated", 143, checkpoint_iteration=57),
    ],
    ids=["drain", "preemption", "SIGTERM with a checkpoint saved"],
)
def test_a_voluntary_disruption_costs_no_budget(end: PodEnd) -> None:
    recovery = replace_pods(FRESH, PodReplacement("worker-1", end))
    assert counts(recovery) == (1, 0, 1)
    assert recovery.first_cause is None
    if end.voluntary:
        assert recovery.node_failures == {}


def test_a_pod_that_terminates_without_progress_costs_a_restart() -> None:
    terminated = PodReplacement("worker-1", PodEnd("worker-1: terminated", 143, checkpoint_iteration=40))
    recovery = replace_pods(replace_pods(FRESH, terminated), terminated, after=20)
    assert recovery.restarts_since_checkpoint == 1


def test_pods_that_repeatedly_lose_each_other_cost_restarts() -> None:
    recovery = FRESH
    for again in range(5):
        recovery = replace_pods(recovery, PEER, after=600.0 * again)
    assert recovery.restarts_since_checkpoint == 5


def test_pods_that_lose_an_unscheduled_peer_cost_no_budget() -> None:
    recovery = replace_pods(FRESH, OOM).model_copy(update={"waiting_since": "2027-01-15T08:00:00Z"})
    for again in range(1, 5):
        recovery = replace_pods(recovery, PEER, after=600.0 * again)
    assert counts(recovery) == (1, 1, 1)


def broken(pod: str, node: str, text: str = "uncorrectable ECC error encountered") -> PodReplacement:
    """A pod that ended because its node's hardware failed."""
    end = PodEnd(f"{pod}: rank 3: {text}", 138, node=node, evidence=Evidence.DEVICE_MEMORY)
    return PodReplacement(pod, end)


def test_failed_hardware_is_counted_against_its_node_with_the_evidence() -> None:
    recovery = replace_pods(FRESH, broken("worker-1", "node-1"), PEER)
    assert recovery.node_failures == {"node-1": 1}
    [kept] = recovery.node_evidence.values()
    assert (kept.evidence, kept.cause) == (
        "DeviceMemory",
        "worker-1: rank 3: uncorrectable ECC error encountered",
    )
    assert seconds(kept.time) == NOW


def test_the_same_evidence_from_several_nodes_at_once_counts_against_no_node() -> None:
    one, other = broken("worker-1", "node-1"), broken("worker-2", "node-2")
    assert replace_pods(FRESH, one, other).node_failures == {}
    recovery = replace_pods(replace_pods(FRESH, one), other, after=20)
    assert recovery.node_failures == {}
    assert [each.shared for each in recovery.node_evidence.values()] == [True, True]
    assert replace_pods(recovery, one, after=120).node_failures == {}, "the same end again is not new"


def test_nodes_that_fail_at_different_times_or_in_different_ways_are_each_at_fault() -> None:
    one = broken("worker-1", "node-1")
    later = replace_pods(replace_pods(FRESH, one), broken("worker-2", "node-2"), after=3600)
    assert later.node_failures == {"node-1": 1, "node-2": 1}
    differently = replace_pods(
        replace_pods(FRESH, one), broken("worker-2", "node-2", "GPU is lost"), after=20
    )
    assert differently.node_failures == {"node-1": 1, "node-2": 1}


def test_a_lost_node_and_the_replacement_of_its_pods_are_one_incident() -> None:
    lost = [PodReplacement("worker-1", PodEnd("worker-1: pod was deleted", node="node-1"))]
    recovery = node_lost(FRESH, lost, "node-1: unreachable", NOW, iteration=50)
    assert node_lost(recovery, lost, "node-1: unreachable", NOW + 3, iteration=50) == recovery, (
        "the operator died before it deleted the pods"
    )
    recovery = replace_pods(recovery, lost[0], after=5)
    assert counts(recovery) == (1, 1, 1)
    assert (last(recovery).kind, last(recovery).node) == ("node", "node-1")
    assert (recovery.restarts_by_kind.node, recovery.restarts_by_kind.pod) == (1, 0)
    assert recovery.node_failures == {"node-1": 1}
    again = replace_pods(recovery, lost[0], after=200)
    assert counts(again) == (2, 2, 2)


def test_a_pod_incident_becomes_a_node_incident_when_the_node_proves_unreachable() -> None:
    recovery = node_lost(
        replace_pods(FRESH, UNOBSERVED), [UNOBSERVED], "node-1: unreachable", NOW + 30, iteration=50
    )
    assert (last(recovery).kind, last(recovery).cause) == ("node", "node-1: unreachable")
    assert (recovery.restarts_by_kind.node, recovery.restarts_by_kind.pod) == (1, 0)


def test_a_gang_restart_counts_and_a_resize_does_not() -> None:
    recovery = gang_restarted(FRESH, "no new iteration for 121 s", NOW, checkpoint=40, iteration=50)
    assert counts(recovery) == (1, 1, 1)
    resize = resized(recovery, 48, 64, "only 48 of 64 are available", NOW + 700, iteration=50)
    assert counts(resize) == (1, 1, 2)
    assert resize.elastic is not None
    assert (resize.elastic.count, resize.restarts_by_kind.resize) == (48, 1)
    whole = resized(resize, 64, 64, "64 of 64 have been free", NOW + 2000, iteration=90)
    assert whole.elastic is None


def test_the_incident_of_a_hang_is_marked_as_one_and_no_other() -> None:
    hang = gang_restarted(FRESH, "no new iteration for 121 s", NOW, checkpoint=40, iteration=50, hang=True)
    assert last(hang).hang is True
    early = gang_restarted(FRESH, "master-0: ended with exit code 0", NOW, checkpoint=40, iteration=50)
    assert "hang" not in last(early).wire()


def test_a_crash_right_after_a_gang_restart_is_another_failure() -> None:
    recovery = gang_restarted(FRESH, "no new iteration for 121 s", NOW, checkpoint=40, iteration=50)
    assert counts(replace_pods(recovery, OOM, after=20)) == (2, 2, 2)


def test_the_first_cause_is_kept_until_a_checkpoint_is_saved() -> None:
    recovery = replace_pods(
        recovered(replace_pods(FRESH, OOM), NOW + 30, resumed_from=40), UNOBSERVED, after=300
    )
    assert recovery.first_cause == "worker-1: out of memory"
    assert recovery.last_cause == "worker-1: pod was lost and replaced"
    saved = checkpoint_saved(recovery, 60)
    assert (saved.restarts_since_checkpoint, saved.first_cause) == (0, None)


@pytest.mark.parametrize("iteration", [None, 30, 40])
def test_an_old_checkpoint_does_not_restore_the_budget(iteration: int | None) -> None:
    recovery = replace_pods(FRESH, OOM)
    assert checkpoint_saved(recovery, iteration) == recovery


def test_a_run_that_trains_again_has_recovered_and_lost_the_repeated_iterations() -> None:
    recovery = recovered(replace_pods(FRESH, OOM), NOW + 30, resumed_from=40)
    assert (last(recovery).lost_iterations, recovery.lost_iterations) == (10, 10)
    assert seconds(last(recovery).recovered_at) == NOW + 30
    assert recovered(recovery, NOW + 60, resumed_from=40) == recovery


def test_the_history_is_bounded_and_the_totals_count_everything() -> None:
    recovery: Any = FRESH
    for index in range(30):
        recovery = replace_pods(recovery, PodReplacement("worker-1", None), after=100.0 * index)
        recovery = recovered(recovery, NOW + 100.0 * index + 50, resumed_from=45)
    assert len(recovery.history) == 20
    assert [each.number for each in recovery.history] == list(range(11, 31))
    assert (recovery.restarts_by_kind.pod, recovery.lost_iterations) == (30, 150)


def test_added_incidents_are_those_that_were_not_in_the_history() -> None:
    before = replace_pods(FRESH, OOM)
    after = gang_restarted(before, "hang", NOW + 300, checkpoint=40, iteration=50)
    assert [each.kind for each in added(before, after)] == ["gang"]
    assert added(after, after) == []


LOST = PodEnd("worker-1: Taint manager: deleting", node="node-1", disruption="DeletionByTaintManager")


def back_after(recovery: RecoveryStatus, seconds_later: float) -> RecoveryStatus:
    return recovered(recovery, NOW + seconds_later, resumed_from=40)


def new_pod(created_after: float, end: PodEnd | None = LOST) -> PodReplacement:
    return PodReplacement("worker-1", end, created=timestamp(NOW + created_after))


def test_a_lost_node_counts_once_if_the_run_trains_before_the_new_pod_is_seen() -> None:
    """The operator was busy or restarting meanwhile; otherwise one loss would have the node avoided."""
    lost = [PodReplacement("worker-1", LOST)]
    recovery = node_lost(FRESH, lost, "node-1: unreachable", NOW, iteration=50)
    recovery = replace_pods(back_after(recovery, 8), new_pod(2), after=9)
    assert counts(recovery) == (1, 1, 1)
    assert recovery.node_failures == {"node-1": 1}
    assert (last(recovery).kind, last(recovery).cause) == ("node", "node-1: unreachable")
    assert last(recovery).recovered_at == timestamp(NOW + 8)


def test_a_pod_that_is_lost_after_the_recovery_is_another_incident() -> None:
    lost = [PodReplacement("worker-1", LOST)]
    recovery = node_lost(FRESH, lost, "node-1: unreachable", NOW, iteration=50)
    recovery = replace_pods(back_after(recovery, 8), new_pod(2), after=9)
    recovery = replace_pods(recovery, new_pod(20), after=21)
    assert counts(recovery) == (2, 2, 2)
    assert recovery.node_failures == {"node-1": 2}


def test_a_failure_that_the_trainer_reported_and_recovered_from_is_the_one_of_the_new_pod() -> None:
    report = ReportedIncident(
        2, NOW, "pod", "lost a peer", node_rank=1, iteration=50, met_at=NOW + 4, first_step_at=NOW + 6
    )
    placed = {1: PodPlacement("worker-1", "node-2")}
    recovery = add_reported_incidents(FRESH, [report], placed, bound_at=NOW + 3, checkpoint=40)
    assert last(recovery).recovered_at is not None
    recovery = replace_pods(recovery, new_pod(2, OOM.end), after=9)
    assert counts(recovery) == (1, 1, 1)


def test_a_checkpoint_that_only_the_end_of_a_pod_reports_gives_the_budget_back() -> None:
    spent = RecoveryStatus(restarts=10, restarts_since_checkpoint=10, checkpoint_iteration=100)
    died = PodReplacement("worker-1", PodEnd("worker-1: rank 3 died", 138, checkpoint_iteration=5000))
    recovery = replace_pods(spent, died, checkpoint=100)
    assert (recovery.restarts_since_checkpoint, recovery.checkpoint_iteration) == (1, 5000)
    again = replace_pods(recovery, died, after=3600, checkpoint=5000)
    assert again.restarts_since_checkpoint == 2

"""What the status records of interruptions: restarts, incidents, and when the run has recovered."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_contract.termination import TerminationMessage
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.incident_history import unrecovered
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.recovery import apply_decision
from megatron_operator.lifecycle.recovery_policy import RestartGang

from tests.unit.lifecycle.reconciling import reason, reconcile


def test_a_replaced_pod_counts_once_and_the_run_recovers_when_it_trains(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.pass_time(5)
    run.pods = run.pods[:1]
    status = reconcile(run)
    assert (status.phase, reason(status, Condition.RECOVERING)) == (Phase.RECOVERING, "PodsLost")
    run.pass_time(2)
    run.pods.append(run.pod("worker", "Pending"))
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    status = reconcile(run)
    assert (status.recovery.restarts, status.recovery.restarts_since_checkpoint) == (1, 1)
    assert status.recovery.last_cause == "worker-0: out of memory"
    run.pass_time(2)
    run.pods[1]["status"]["phase"] = "Running"
    run.pass_time(1)
    run.report(phase="rendezvous", iteration=50, checkpointIteration=40)
    assert reconcile(run).phase == Phase.RECOVERING
    run.report(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    status = reconcile(run)
    assert status.phase == Phase.TRAINING
    assert reason(status, Condition.RECOVERING) == "Recovered"
    assert (status.recovery.restarts, status.recovery.lost_iterations) == (1, 10)


def test_a_pod_that_is_replaced_in_the_second_of_its_creation_counts(run: Any) -> None:
    reconcile(run)
    run.replace_worker()
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    status = reconcile(run)
    assert (status.recovery.restarts, status.recovery.last_cause) == (1, "worker-0: out of memory")
    assert reconcile(run).recovery.restarts == 1


def rank_incident(run: Any, generation: int, **more: Any) -> dict[str, Any]:
    """The trainer's report of a rank that died."""
    return {
        "generation": generation,
        "kind": "rank",
        "nodeRank": 1,
        "rank": 3,
        "cause": "rank 3 was killed by SIGKILL",
        "iteration": 50,
        "resumedFrom": 40,
        "lastStepAt": run.now - 2,
        "detectedAt": run.now - 1,
        "metAt": run.now,
        **more,
    }


def test_a_rank_that_died_is_recorded_with_its_node_and_its_cost(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40, lmLoss=2.5)
    assert reconcile(run).progress.lm_loss == 2.5
    run.pods[1]["spec"] = {"nodeName": "node-7"}
    incident = rank_incident(run, 2)
    run.report(phase="loading", iteration=50, lmLoss=2.5, generation=2, resumedFrom=40, incidents=[incident])
    status = reconcile(run)
    assert (status.phase, reason(status, Condition.RECOVERING)) == (Phase.RECOVERING, "RankRestarted")
    assert (status.progress.iteration, status.progress.lm_loss) == (40, None), "the loss of iteration 50"
    [kept] = status.recovery.history
    assert (kept.pod, kept.node, kept.rank) == ("worker-0", "node-7", 3)
    assert status.recovery.node_failures == {}, "a rank may die of its program"
    assert status.recovery.lost_iterations == 10
    run.pass_time(3)
    recovered = incident | {"firstStepAt": run.now, "caughtUpAt": run.now + 4}
    run.report(iteration=51, generation=2, resumedFrom=40, incidents=[recovered])
    status = reconcile(run)
    assert (status.phase, reason(status, Condition.RECOVERING)) == (Phase.TRAINING, "Recovered")
    assert status.recovery.lost_iterations == 10
    assert status.recovery.restarts_by_kind.rank == 1
    assert status.recovery.lost_seconds.redo == 4
    assert not reconcile(run).changed()


def test_each_restart_of_ranks_inside_their_pods_counts_although_a_checkpoint_resets_that_of_the_pod(
    run: Any,
) -> None:
    kinds = ["rank", "hang", "loss", "rank"]
    for generation, kind in enumerate(kinds, 2):
        saved = 10 * generation
        incident = rank_incident(run, generation, kind=kind, firstStepAt=run.now + 1, resumedFrom=saved)
        fields = {"generation": generation, "resumedFrom": saved, "incidents": [incident], "rankRestarts": 1}
        run.report(iteration=saved + 1, checkpointIteration=saved, **fields)
        reconcile(run)
        run.report(iteration=saved + 10, checkpointIteration=saved + 10, **fields | {"rankRestarts": 0})
        assert reconcile(run).recovery.rank_restarts == generation - 1
    run.replace_worker()
    assert reconcile(run).recovery.rank_restarts == len(kinds)


def test_the_count_of_restarted_ranks_that_an_earlier_release_wrote_does_not_decrease(run: Any) -> None:
    run.body["status"] = {"recovery": {"rankRestarts": 7}}
    run.report(iteration=50, generation=2, incidents=[rank_incident(run, 2)])
    recovery = reconcile(run).recovery
    assert (recovery.restarts_by_kind.rank, recovery.rank_restarts) == (1, 7)


@pytest.mark.parametrize("new_job", [True, False], ids=["edited in the queue", "resumed by the queue"])
def test_a_run_that_its_queue_preempted_was_not_interrupted(run: Any, new_job: bool) -> None:
    run.job["metadata"]["creationTimestamp"] = timestamp(run.now)
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    stop = rank_incident(run, 2, kind="stop", rank=None, cause="SIGTERM: saved", resumedFrom=50)
    run.pods, run.job["spec"]["runPolicy"] = [], {"suspend": True}
    assert reconcile(run).phase == Phase.QUEUED
    run.pass_time(28_800)
    run.job["spec"]["runPolicy"] = {"suspend": False}
    if new_job:
        run.job["metadata"] |= {"uid": "j2", "creationTimestamp": timestamp(run.now)}
    else:
        resumed = {"type": "Suspended", "status": "False", "lastTransitionTime": timestamp(run.now)}
        run.job["status"] = {"conditions": [resumed]}
    run.pods = [run.pod("master"), run.pod("worker")]
    reconcile(run)
    run.pass_time(20)
    run.report(iteration=51, generation=2, resumedFrom=50, incidents=[stop | {"metAt": run.now}])
    status = reconcile(run)
    assert (status.phase, status.recovery.history, status.recovery.restarts) == (Phase.TRAINING, [], 0)
    assert status.condition(Condition.RECOVERING) is None


def test_a_recipe_that_was_created_again_has_no_interruptions_of_the_one_before(run: Any) -> None:
    run.body["metadata"]["creationTimestamp"] = timestamp(run.now)
    earlier = [
        rank_incident(run, each, kind="hang", detectedAt=run.now - 7200 + 600 * each) for each in range(2, 9)
    ]
    run.report(iteration=50, generation=9, resumedFrom=50, checkpointIteration=50, incidents=earlier)
    recovery = reconcile(run).recovery
    assert (recovery.history, recovery.restarts_since_checkpoint) == ([], 0)
    assert recovery.lost_seconds.detect is None
    run.pass_time(30)
    run.report(iteration=60, generation=10, incidents=[*earlier[1:], rank_incident(run, 10)])
    assert [each.generation for each in reconcile(run).recovery.history] == [10]


def test_reports_of_surviving_pods_from_before_the_incident_are_no_recovery(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.pass_time(5)
    run.replace_worker()
    reconcile(run)
    run.pass_time(3)
    run.report(iteration=50, checkpointIteration=40)
    assert reconcile(run).phase == Phase.RECOVERING
    run.report(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    status = reconcile(run)
    assert status.phase == Phase.TRAINING
    assert status.recovery.lost_iterations == 10


def test_a_recovery_that_completed_between_two_reconciles_is_recorded(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.pass_time(60)
    run.replace_worker()
    run.pass_time(3)
    run.report(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    status = reconcile(run)
    assert status.phase == Phase.TRAINING
    assert (status.recovery.restarts, status.recovery.lost_iterations) == (1, 10)


def test_a_run_that_completes_before_a_new_operator_has_a_report_lost_the_iterations_since_its_checkpoint(
    run: Any,
) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.replace_worker()
    reconcile(run)
    run.reading = None
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    message = '{"reason": "Completed", "iteration": 200, "checkpointIteration": 200}'
    ended = {"terminated": {"exitCode": 0, "message": message}}
    for pod in run.pods:
        pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "pytorch", "state": ended}]}
    status = reconcile(run)
    assert (status.phase, status.checkpoint.iteration) == (Phase.SUCCEEDED, 200)
    assert status.recovery.history[-1].resumed_from == 40
    assert status.recovery.lost_iterations == 10


def test_a_pod_that_stopped_waiting_for_an_unscheduled_peer_costs_no_budget(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.pass_time(5)
    run.replace_worker("Pending")
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no GPU",
    }
    run.pods[1]["status"]["conditions"] = [unschedulable]
    assert reconcile(run).recovery.restarts_since_checkpoint == 1
    run.pass_time(600)
    run.pods[0] = run.pod("master")
    run.ends = {"run-master-0": PodEnd("master-0: lost its peers", 140)}
    recovery = reconcile(run).recovery
    assert recovery.waiting_since is not None
    assert recovery.restarts_since_checkpoint == 1


def test_a_newer_checkpoint_restores_the_budget(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.pass_time(5)
    run.replace_worker()
    assert reconcile(run).recovery.restarts_since_checkpoint == 1
    run.pass_time(5)
    run.report(iteration=61, generation=2, resumedFrom=40, checkpointIteration=60)
    recovery = reconcile(run).recovery
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 0)


def test_a_pod_replaced_between_two_reconciles_is_a_recovery_until_the_run_trains(run: Any) -> None:
    run.report(phase="rendezvous", iteration=50)
    reconcile(run)
    run.pass_time(5)
    run.replace_worker()
    run.pass_time(1)
    assert reconcile(run).phase == Phase.RECOVERING
    run.report(iteration=51, generation=2, resumedFrom=40)
    assert reconcile(run).phase == Phase.TRAINING


def test_pods_of_a_gang_that_is_being_restarted_do_not_count_as_its_new_pods(run: Any) -> None:
    reconcile(run)
    run.pass_time(5)
    status = run.status()
    apply_decision(status, run.snapshot(), RestartGang("no new iteration"))
    run.write(status)
    assert reconcile(run).recovery.pods_as_of is None
    run.pass_time(5)
    run.pods = [run.pod("master"), run.pod("worker")]
    status = reconcile(run)
    assert status.recovery.pods_as_of is not None
    assert status.recovery.restarts == 1, "the restart is already counted"


def test_the_first_start_is_no_recovery(run: Any) -> None:
    master, worker = run.pod("master", "Pending"), run.pod("worker", "Pending")
    run.pods = [master]
    assert reconcile(run).phase == Phase.STARTING
    run.pass_time(3)
    master["status"]["phase"] = "Running"
    run.pods = [master, worker]
    assert reconcile(run).phase == Phase.STARTING
    worker["status"]["phase"] = "Running"
    run.report(phase="loading", iteration=None)
    status = reconcile(run)
    assert status.phase == Phase.STARTING
    assert status.condition(Condition.RECOVERING) is None
    assert status.recovery.restarts == 0


def test_pods_that_complete_one_after_the_other_are_no_recovery(run: Any) -> None:
    run.report(iteration=200)
    reconcile(run)
    run.pods[1]["status"]["phase"] = "Succeeded"
    status = reconcile(run)
    assert status.phase == Phase.TRAINING
    assert status.condition(Condition.RECOVERING) is None
    assert not status.changed()


def test_evidence_of_failed_hardware_is_kept_before_the_pod_is_replaced(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    pod = run.pods[1]
    pod["spec"] = {"nodeName": "node-7"}
    text = TerminationMessage.of(
        ExitCode.WORKER_DIED, "rank 3: uncorrectable ECC error encountered", evidence=Evidence.DEVICE_MEMORY
    ).dumps()
    ended = {"exitCode": 138, "message": text}
    pod["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "pytorch", "state": {"terminated": ended}}],
    }
    status = reconcile(run)
    assert status.recovery.node_failures == {"node-7": 1}
    assert status.recovery.node_evidence["node-7"].evidence == "DeviceMemory"
    assert not reconcile(run).changed(), "the same end is counted once"


def test_survivors_of_an_incident_that_a_new_operator_recorded_have_not_trained_since(run: Any) -> None:
    """The status was behind when the operator started, and no pod had answered it yet."""
    run.report(iteration=10, resumedFrom=5)
    reconcile(run)
    run.reading = None
    run.pass_time(20)
    run.replace_worker()
    assert unrecovered(reconcile(run).recovery) is not None
    for _ in range(2):
        run.report(iteration=25, resumedFrom=5)
        open_ = unrecovered(reconcile(run).recovery)
        assert open_ is not None, "they report the generation that was interrupted"
        assert open_.iteration == 25
    run.report(iteration=6, generation=2, resumedFrom=5)
    status = reconcile(run)
    assert unrecovered(status.recovery) is None
    assert status.recovery.lost_iterations == 20


def test_a_generation_that_ended_between_two_reports_is_remembered_for_the_incident(run: Any) -> None:
    run.report(iteration=10, resumedFrom=5)
    reconcile(run)
    run.replace_worker()
    run.report(iteration=6, generation=2, resumedFrom=5)
    run.reading = replace(run.reading, reached=25)
    assert reconcile(run).recovery.history[-1].iteration == 25


@pytest.mark.parametrize(
    ("seconds", "exit_code", "restarts"),
    [(0, None, 1), (5, None, 1), (6, None, 2), (1, 138, 2)],
    ids=["the same second", "5 s", "6 s", "1 s, with an exit code"],
)
def test_a_worker_that_is_replaced_twice_costs_two_restarts_only_if_the_first_replacement_ran(
    run: Any, seconds: int, exit_code: int | None, restarts: int
) -> None:
    reconcile(run)
    run.pass_time(100)
    run.ends = {"run-worker-0": PodEnd("worker-0: rank 3 was killed", 138)}
    run.replace_worker("Pending")
    reconcile(run)
    run.pass_time(seconds)
    run.ends = {"run-worker-0": PodEnd("worker-0: pod was lost", exit_code)}
    run.replace_worker("Pending")
    status = reconcile(run)
    assert status.recovery.restarts == len(status.recovery.history) == restarts

"""The status of a run, from one reconcile to the next."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.times import seconds

from tests.unit.lifecycle.reconciling import reconcile


def test_the_progress_of_a_training_run_is_reported(run: Any) -> None:
    run.report(iteration=50, lmLoss=2.5, checkpointIteration=40)
    status = reconcile(run)
    assert status.phase == Phase.TRAINING
    assert (status.progress.display, status.progress.lm_loss) == ("50/200", 2.5)
    assert status.checkpoint.iteration == 40
    assert status.progress.eta == "2027-01-15T08:02:31Z"
    assert status.recovery.restarts == 0


def test_the_last_and_the_best_evaluation_are_reported_and_kept_while_pods_know_none(run: Any) -> None:
    run.report(iteration=50)
    assert reconcile(run).current.validation is None
    best = {"bestValidationIteration": 20, "bestValidationLoss": 2.0}
    run.report(iteration=51, validationIteration=50, validationLoss=2.1234567, **best)
    expected = {"iteration": 50, "loss": 2.1235, "bestIteration": 20, "bestLoss": 2.0}
    assert reconcile(run).wire()["validation"] == expected
    run.report(iteration=52)
    assert reconcile(run).wire()["validation"] == expected


def test_the_best_checkpoint_is_reported_and_kept_while_pods_know_none(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    assert "bestIteration" not in reconcile(run).wire()["checkpoint"]
    for report in ({"bestCheckpointIteration": 20, "bestCheckpointLoss": 2.1234567}, {"phase": "loading"}):
        run.report(iteration=54, checkpointIteration=40, **report)
        status = reconcile(run)
        assert (status.checkpoint.best_iteration, status.checkpoint.best_loss) == (20, 2.1235)


def test_a_best_checkpoint_that_is_gone_is_reported_no_longer_once_the_run_trains(run: Any) -> None:
    run.report(iteration=54, checkpointIteration=40, bestCheckpointIteration=20, bestCheckpointLoss=2.1)
    reconcile(run)
    run.report(iteration=55, checkpointIteration=40)
    assert "bestIteration" not in reconcile(run).wire()["checkpoint"]


def test_a_total_that_a_later_report_corrects_is_reported(run: Any) -> None:
    run.report(iteration=70)
    reconcile(run)
    run.report(iteration=70, trainIters=300)
    assert reconcile(run).progress.display == "70/300"


def test_a_loss_that_becomes_known_later_is_reported(run: Any) -> None:
    run.report(iteration=70)
    assert reconcile(run).progress.lm_loss is None
    run.report(iteration=70, lmLoss=2.5)
    assert reconcile(run).progress.lm_loss == 2.5


def test_a_second_reconcile_of_the_same_state_changes_nothing(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.pass_time(10)
    assert not reconcile(run).changed()


def test_a_restarted_operator_without_a_report_yet_leaves_the_status_unchanged(run: Any) -> None:
    run.report(iteration=50)
    reconcile(run)
    run.reading = None
    status = reconcile(run)
    assert not status.changed()
    assert status.phase == Phase.TRAINING


def test_a_restarted_operator_keeps_what_was_reported_of_a_starting_run(run: Any) -> None:
    run.report(phase="rendezvous", iteration=None)
    running = reconcile(run).condition(Condition.RUNNING)
    assert running is not None
    assert running.message == "all pods run; phase rendezvous"
    run.reading = None
    assert not reconcile(run).changed()


def test_a_restarted_operator_keeps_what_was_reported_of_a_recovering_run(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.replace_worker()
    run.report(phase="rendezvous", iteration=50, checkpointIteration=40)
    assert reconcile(run).phase == Phase.RECOVERING
    run.reading = None
    assert not reconcile(run).changed()


def test_a_warning_in_which_only_numbers_change_posts_no_further_event(run: Any) -> None:
    low = {"reason": "CheckpointVolumeLow", "message": "12.5 GiB are left"}
    run.report(iteration=50, warnings=[low])
    status = reconcile(run)
    assert [event.reason for event in status.events] == ["CheckpointVolumeLow"]
    run.report(iteration=50, warnings=[low | {"message": "12.4 GiB are left"}])
    status = reconcile(run)
    assert not status.events
    assert not status.changed()
    run.report(iteration=50, warnings=[])
    assert reconcile(run).current.warnings == []


def test_the_wait_for_capacity_ends_when_the_whole_gang_is_bound(run: Any) -> None:
    run.pods[1]["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
        ],
    }
    since = reconcile(run).recovery.waiting_since
    run.pass_time(60)
    assert reconcile(run).recovery.waiting_since == since
    for pod in run.pods:
        pod["spec"] = {"nodeName": "node-1"}
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["status"].get("startTime")}
        ]
    run.pods[1]["status"]["conditions"][0]["lastTransitionTime"] = run.pods[0]["status"]["startTime"]
    assert reconcile(run).recovery.waiting_since is None


def test_a_succeeded_run_has_completed_its_last_iteration_whatever_its_last_report(run: Any) -> None:
    run.report(iteration=199)
    reconcile(run)
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    message = '{"reason": "Completed", "iteration": 199, "checkpointIteration": 200}'
    late = {"terminated": {"exitCode": 0, "message": message}}
    for pod in run.pods:
        pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "pytorch", "state": late}]}
    status = reconcile(run)
    assert status.phase == Phase.SUCCEEDED
    assert (status.progress.iteration, status.progress.display) == (200, "200/200")
    assert status.checkpoint.iteration == 200


def test_a_job_whose_master_exited_early_has_not_succeeded(run: Any) -> None:
    run.report(iteration=120)
    reconcile(run)
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    early = {"terminated": {"exitCode": 0}}
    run.pods[0]["status"] |= {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "pytorch", "state": early}],
    }
    status = reconcile(run)
    assert status.phase != Phase.SUCCEEDED
    assert status.condition(Condition.SUCCEEDED) is None
    running = status.condition(Condition.RUNNING)
    assert running is not None
    assert running.message == "master-0: ended with exit code 0 before the last iteration"


def test_a_failed_job_names_the_pod_that_caused_it(run: Any) -> None:
    run.job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "job is failing"}]}
    peer = {"terminated": {"exitCode": 140, "message": '{"message": "lost its peers"}'}}
    at_fault = {"terminated": {"exitCode": 65, "message": '{"message": "web.idx is missing"}'}}
    for pod, state in zip(run.pods, (peer, at_fault), strict=True):
        pod["status"] |= {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": state}]}
    status = reconcile(run)
    assert status.phase == Phase.FAILED
    failed = status.condition(Condition.FAILED)
    assert failed is not None
    assert failed.message == "worker-0: web.idx is missing (exit code 65)"


def test_a_queued_job_names_its_queue(run: Any) -> None:
    run.job["spec"]["runPolicy"]["suspend"] = True
    run.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    run.pods = []
    status = reconcile(run)
    running = status.condition(Condition.RUNNING)
    assert running is not None
    assert (running.reason, running.message) == ("Queued", "waits for admission by queue research")


def test_a_run_that_its_queue_preempted_counts_no_restart_when_it_is_resumed(run: Any) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    before = run.pods
    run.job["spec"]["runPolicy"]["suspend"] = True
    run.pods = []
    assert reconcile(run).phase == Phase.QUEUED
    run.job["spec"]["runPolicy"]["suspend"] = False
    run.pass_time(60)
    run.pods = [run.pod("master"), run.pod("worker")]
    assert {pod["metadata"]["uid"] for pod in run.pods}.isdisjoint(pod["metadata"]["uid"] for pod in before)
    run.report(iteration=41, checkpointIteration=40, generation=2, resumedFrom=40)
    recovery = reconcile(run).recovery
    assert (recovery.restarts, recovery.restarts_since_checkpoint, recovery.history) == (0, 0, [])


@pytest.mark.parametrize("report", [{"iteration": 5, "generation": None}, {"iteration": None}])
def test_reports_without_a_value_do_not_reset_the_status(run: Any, report: dict[str, Any]) -> None:
    run.report(iteration=50, checkpointIteration=40)
    reconcile(run)
    run.report(phase="starting", checkpointIteration=None, **report)
    assert reconcile(run).checkpoint.iteration == 40


def test_the_time_of_an_iteration_is_when_it_changed_however_late_it_is_written(run: Any) -> None:
    run.report(iteration=10)
    reconcile(run)
    run.report(iteration=15)
    changed = run.now
    run.pass_time(25)
    run.reading = replace(run.reading, answered=run.now, unchanged=25.0)
    run.pass_time(2)
    assert seconds(reconcile(run).progress.time) == changed

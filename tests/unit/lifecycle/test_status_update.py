"""What the status says of a run, look by look."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.lifecycle import PodEnd, RestartGang
from megatron_operator.lifecycle.recovery import carry_out
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.lifecycle.status_update import follow


def look(run: Any) -> Draft:
    draft = run.draft()
    follow(draft, run.scene())
    return run.keep(draft)


def reason(draft: Draft, kind: Condition) -> str | None:
    condition = draft.condition(kind)
    return condition.reason if condition else None


def test_a_run_in_training_is_told_with_its_figures(run: Any) -> None:
    run.say(iteration=50, lmLoss=2.5, checkpointIteration=40)
    draft = look(run)
    assert draft.phase == Phase.TRAINING
    assert (draft.progress.display, draft.progress.lm_loss) == ("50/200", 2.5)
    assert draft.checkpoint.iteration == 40
    assert draft.progress.eta == "2027-01-15T08:02:31Z"
    assert draft.recovery.restarts == 0


def test_a_second_look_at_the_same_changes_nothing(run: Any) -> None:
    run.say(iteration=50)
    look(run)
    run.pass_time(10)
    assert not look(run).changed()


def test_a_restarted_operator_that_has_heard_nothing_yet_lets_stand_what_was_said(run: Any) -> None:
    run.say(iteration=50)
    look(run)
    run.reading = None
    draft = look(run)
    assert not draft.changed()
    assert draft.phase == Phase.TRAINING


def test_a_replaced_pod_counts_once_and_recovers_when_training_goes_on(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pass_time(5)
    run.pods = run.pods[:1]
    draft = look(run)
    assert (draft.phase, reason(draft, Condition.RECOVERING)) == (Phase.RECOVERING, "PodsLost")
    run.pass_time(2)
    run.pods.append(run.pod("worker", "Pending"))
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    draft = look(run)
    assert (draft.recovery.restarts, draft.recovery.restarts_since_checkpoint) == (1, 1)
    assert draft.recovery.last_cause == "worker-0: out of memory"
    run.pass_time(2)
    run.pods[1]["status"]["phase"] = "Running"
    run.pass_time(1)
    run.say(phase="rendezvous", iteration=50, checkpointIteration=40)
    assert look(run).phase == Phase.RECOVERING
    run.say(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    draft = look(run)
    assert draft.phase == Phase.TRAINING
    assert reason(draft, Condition.RECOVERING) == "Recovered"
    assert (draft.recovery.restarts, draft.recovery.lost_iterations) == (1, 10)


def test_a_pod_replaced_within_the_second_of_its_making_counts_too(run: Any) -> None:
    look(run)
    run.replace_worker()
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    draft = look(run)
    assert (draft.recovery.restarts, draft.recovery.last_cause) == (1, "worker-0: out of memory")
    assert look(run).recovery.restarts == 1


def told(run: Any, generation: int, **more: Any) -> dict[str, Any]:
    """A rank's death as the trainer tells it."""
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


def test_a_rank_that_died_is_told_with_its_place_and_what_it_cost(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pods[1]["spec"] = {"nodeName": "node-7"}
    incident = told(run, 2)
    run.say(phase="loading", iteration=50, generation=2, resumedFrom=40, incidents=[incident])
    draft = look(run)
    assert (draft.phase, reason(draft, Condition.RECOVERING)) == (Phase.RECOVERING, "RankRestarted")
    [kept] = draft.recovery.history
    assert (kept.pod, kept.node, kept.rank) == ("worker-0", "node-7", 3)
    assert draft.recovery.node_failures == {"node-7": 1}
    assert draft.recovery.lost_iterations == 10
    run.pass_time(3)
    recovered = incident | {"firstStepAt": run.now, "caughtUpAt": run.now + 4}
    run.say(iteration=51, generation=2, resumedFrom=40, incidents=[recovered])
    draft = look(run)
    assert (draft.phase, reason(draft, Condition.RECOVERING)) == (Phase.TRAINING, "Recovered")
    assert draft.recovery.lost_iterations == 10
    assert draft.recovery.restarts_by_kind.rank == 1
    assert draft.recovery.lost_seconds.redo == 4
    assert not look(run).changed()


def test_survivors_that_do_not_know_yet_are_not_taken_for_a_recovery(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pass_time(5)
    run.replace_worker()
    look(run)
    run.pass_time(3)
    run.say(iteration=50, checkpointIteration=40)
    assert look(run).phase == Phase.RECOVERING
    run.say(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    draft = look(run)
    assert draft.phase == Phase.TRAINING
    assert draft.recovery.lost_iterations == 10


def test_a_recovery_that_was_over_before_it_was_seen_is_told_whole(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pass_time(60)
    run.replace_worker()
    run.pass_time(3)
    run.say(iteration=41, generation=2, resumedFrom=40, checkpointIteration=40)
    draft = look(run)
    assert draft.phase == Phase.TRAINING
    assert (draft.recovery.restarts, draft.recovery.lost_iterations) == (1, 10)


def test_warnings_are_kept_while_they_are_told_and_their_figures_are_no_news(run: Any) -> None:
    low = {"reason": "CheckpointVolumeLow", "message": "12.5 GiB are left"}
    run.say(iteration=50, warnings=[low])
    draft = look(run)
    assert [notice.reason for notice in draft.notices] == ["CheckpointVolumeLow"]
    run.say(iteration=50, warnings=[low | {"message": "12.4 GiB are left"}])
    draft = look(run)
    assert not draft.notices
    assert not draft.changed()
    run.say(iteration=50, warnings=[])
    assert look(run).status.warnings == []


def test_a_pod_that_gave_up_waiting_for_one_without_a_place_costs_no_budget(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pass_time(5)
    run.replace_worker("Pending")
    no_place = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    run.pods[1]["status"]["conditions"] = [no_place]
    assert look(run).recovery.restarts_since_checkpoint == 1
    run.pass_time(600)
    run.pods[0] = run.pod("master")
    run.ends = {"run-master-0": PodEnd("master-0: peers did not come", 140)}
    recovery = look(run).recovery
    assert recovery.waiting_since is not None
    assert recovery.restarts_since_checkpoint == 1


def test_waiting_for_a_place_ends_when_the_whole_gang_has_one(run: Any) -> None:
    run.pods[1]["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
        ],
    }
    began = look(run).recovery.waiting_since
    run.pass_time(60)
    assert look(run).recovery.waiting_since == began
    for pod in run.pods:
        pod["spec"] = {"nodeName": "node-1"}
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["status"].get("startTime")}
        ]
    run.pods[1]["status"]["conditions"][0]["lastTransitionTime"] = run.pods[0]["status"]["startTime"]
    assert look(run).recovery.waiting_since is None


def test_a_newer_checkpoint_gives_the_budget_back(run: Any) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.pass_time(5)
    run.replace_worker()
    assert look(run).recovery.restarts_since_checkpoint == 1
    run.pass_time(5)
    run.say(iteration=61, generation=2, resumedFrom=40, checkpointIteration=60)
    recovery = look(run).recovery
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 0)


def test_a_pod_that_is_replaced_between_two_looks_is_a_recovery_until_training_is_heard_of(run: Any) -> None:
    run.say(phase="rendezvous", iteration=50)
    look(run)
    run.pass_time(5)
    run.replace_worker()
    run.pass_time(1)
    assert look(run).phase == Phase.RECOVERING
    run.say(iteration=51, generation=2, resumedFrom=40)
    assert look(run).phase == Phase.TRAINING


def test_pods_of_a_gang_that_is_to_go_are_not_taken_for_its_successors(run: Any) -> None:
    look(run)
    run.pass_time(5)
    draft = run.draft()
    carry_out(draft, run.scene(), RestartGang("no new iteration"))
    run.keep(draft)
    assert look(run).recovery.pods_as_of is None
    run.pass_time(5)
    run.pods = [run.pod("master"), run.pod("worker")]
    draft = look(run)
    assert draft.recovery.pods_as_of is not None
    assert draft.recovery.restarts == 1, "the gang's new pods are the restart that was counted"


def test_the_beginning_is_no_recovery(run: Any) -> None:
    master, worker = run.pod("master", "Pending"), run.pod("worker", "Pending")
    run.pods = [master]
    assert look(run).phase == Phase.STARTING
    run.pass_time(3)
    master["status"]["phase"] = "Running"
    run.pods = [master, worker]
    assert look(run).phase == Phase.STARTING
    worker["status"]["phase"] = "Running"
    run.say(phase="loading", iteration=None)
    draft = look(run)
    assert draft.phase == Phase.STARTING
    assert draft.condition(Condition.RECOVERING) is None
    assert draft.recovery.restarts == 0


def test_pods_that_end_well_one_after_the_other_are_no_recovery(run: Any) -> None:
    run.say(iteration=200)
    look(run)
    run.pods[1]["status"]["phase"] = "Succeeded"
    draft = look(run)
    assert draft.phase == Phase.TRAINING
    assert draft.condition(Condition.RECOVERING) is None
    assert not draft.changed()


def test_a_run_that_succeeded_did_its_last_iteration_even_if_its_pods_last_told_of_the_one_before(
    run: Any,
) -> None:
    run.say(iteration=199)
    look(run)
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    words = '{"reason": "Completed", "iteration": 199, "checkpointIteration": 200}'
    late = {"terminated": {"exitCode": 0, "message": words}}
    for pod in run.pods:
        pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "pytorch", "state": late}]}
    draft = look(run)
    assert draft.phase == Phase.SUCCEEDED
    assert (draft.progress.iteration, draft.progress.display) == (200, "200/200")
    assert draft.checkpoint.iteration == 200


def test_a_job_whose_master_left_early_is_not_taken_for_done(run: Any) -> None:
    run.say(iteration=120)
    look(run)
    run.job["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    left = {"terminated": {"exitCode": 0}}
    run.pods[0]["status"] |= {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "pytorch", "state": left}],
    }
    draft = look(run)
    assert draft.phase != Phase.SUCCEEDED
    assert draft.condition(Condition.SUCCEEDED) is None
    running = draft.condition(Condition.RUNNING)
    assert running is not None
    assert running.message == "master-0: ended with exit code 0 before the last iteration"


def test_a_failed_job_names_the_pod_that_began_it(run: Any) -> None:
    run.job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "job is failing"}]}
    peer = {"terminated": {"exitCode": 140, "message": '{"message": "peers did not come"}'}}
    guilty = {"terminated": {"exitCode": 65, "message": '{"message": "web.idx is missing"}'}}
    for pod, state in zip(run.pods, (peer, guilty), strict=True):
        pod["status"] |= {"phase": "Failed", "containerStatuses": [{"name": "pytorch", "state": state}]}
    draft = look(run)
    assert draft.phase == Phase.FAILED
    failed = draft.condition(Condition.FAILED)
    assert failed is not None
    assert failed.message == "worker-0: web.idx is missing (exit code 65)"


def test_a_job_that_waits_in_a_queue_says_which(run: Any) -> None:
    run.job["spec"]["runPolicy"]["suspend"] = True
    run.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    run.pods = []
    draft = look(run)
    running = draft.condition(Condition.RUNNING)
    assert running is not None
    assert (running.reason, running.message) == ("Queued", "waits for admission by queue research")


@pytest.mark.parametrize("report", [{"iteration": 5, "generation": None}, {"iteration": None}])
def test_pods_that_do_not_know_yet_take_nothing_back(run: Any, report: dict[str, Any]) -> None:
    run.say(iteration=50, checkpointIteration=40)
    look(run)
    run.say(phase="starting", checkpointIteration=None, **report)
    assert look(run).checkpoint.iteration == 40

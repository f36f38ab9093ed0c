"""Runs on JobSet and TrainJob: which pods are replaced, what an early exit is, how nodes are avoided."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.actions import (
    Action,
    DeleteJob,
    DeletePods,
    DeleteRuntime,
    DeleteUnboundPods,
    ReplacePods,
)
from megatron_operator.lifecycle.ended_pods import MAX_PODS, record_ends, recorded_ends
from megatron_operator.lifecycle.job_status import adopt_job
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.recovery import apply_decision, awaits_another_job, unfinished_actions
from megatron_operator.lifecycle.recovery_policy import Avoid, Fail, ReleaseNodes, Wait
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.lifecycle.undisturbed import is_undisturbed
from megatron_operator.manifests.job_backends import backend_of, newest_by_place
from megatron_operator.manifests.node_avoidance import avoiding

LATER = "2027-01-15T08:00:30Z"


@pytest.fixture(params=["JobSet", "TrainJob"])
def on_jobset(run: Any, request: pytest.FixtureRequest) -> Any:
    """The run, training as a JobSet of two pods, the operator's own or Trainer's."""
    template = {"spec": {"containers": [variables()]}}
    groups = [
        {"name": name, "replicas": 1, "template": {"spec": {"template": template}}}
        for name in ("master", "worker")
    ]
    metadata = {
        "name": "run",
        "namespace": "default",
        "uid": "j",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if request.param == "JobSet":
        run.job = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata,
            "spec": {"replicatedJobs": groups},
        }
    else:
        run.job = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": metadata,
            "spec": {"trainer": {"numNodes": 2, "numProcPerNode": 2}},
            "trainingRuntime": {"spec": {"template": {"spec": {"replicatedJobs": groups}}}},
        }
    run.pods = [pod(run, "master"), pod(run, "worker")]
    run.report(iteration=50, checkpointIteration=40)
    status = run.status()
    adopt_job(status, run.job)
    update_status(status, run.snapshot())
    run.write(status)
    return run


def variables() -> dict[str, Any]:
    env = [{"name": "PET_NPROC_PER_NODE", "value": "2"}]
    return {"name": "pytorch", "image": "trainer:1", "env": env}


def pod(run: Any, place: str) -> dict[str, Any]:
    made: dict[str, Any] = run.pod(place)
    made["metadata"]["name"] = f"run-{place}-0-0-{made['metadata']['uid']}"
    made["metadata"]["labels"] = {
        "jobset.sigs.k8s.io/jobset-name": "run",
        "jobset.sigs.k8s.io/jobset-uid": "j",
        "jobset.sigs.k8s.io/replicatedjob-name": place,
        "jobset.sigs.k8s.io/job-index": "0",
    }
    return made


def unscheduled(run: Any, reason: str) -> dict[str, Any]:
    """A worker without a node, from the job's present template."""
    waiting = pod(run, "worker")
    waiting["spec"] = deepcopy(backend_of(run.job).templates(run.job)[1]["spec"])
    condition = {"type": "PodScheduled", "status": "False", "reason": reason}
    waiting["status"] = {"phase": "Pending", "conditions": [condition]}
    return waiting


def end(each: dict[str, Any], code: int | None, message: str = "") -> None:
    each["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
    if code is not None:
        terminated = {"exitCode": code, "message": message, "finishedAt": LATER}
        each["status"]["containerStatuses"] = [{"name": "pytorch", "state": {"terminated": terminated}}]


def complete(run: Any) -> None:
    kind = {"JobSet": "Completed", "TrainJob": "Complete"}[run.job["kind"]]
    run.job["status"] = {"conditions": [{"type": kind, "status": "True"}]}


def unfinished(run: Any) -> Any:
    status = run.status()
    update_status(status, run.snapshot())
    result = unfinished_actions(status, run.snapshot())
    run.write(status)
    return result and result.actions


def test_the_status_names_the_kind_of_the_job(on_jobset: Any) -> None:
    assert on_jobset.status().current.job.kind == on_jobset.job["kind"]


def test_a_run_that_trains_is_judged_without_the_templates_that_its_runtime_has(on_jobset: Any) -> None:
    """The watches deliver the TrainJob without its TrainingRuntime."""
    on_jobset.job.pop("trainingRuntime", None)
    snapshot = replace(on_jobset.snapshot(), cached=True)
    assert snapshot.has_templates == (on_jobset.job["kind"] == "JobSet")
    assert unfinished_actions(on_jobset.status(), snapshot) is None
    assert snapshot.image_to_pin is None
    assert (snapshot.size, snapshot.per_node) == (2, 2)


def test_a_run_that_waits_for_nodes_is_read_where_its_templates_are_not_cached(on_jobset: Any) -> None:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}
    on_jobset.job["metadata"] |= {"labels": {LABEL_RECIPE: "run"}, "ownerReferences": [owner]}
    for each in on_jobset.pods:
        each["status"] = {"phase": "Pending"}
    status, snapshot = on_jobset.status(), replace(on_jobset.snapshot(), cached=True)
    status.set(phase=Phase.STARTING)
    status.set_condition(Condition.PLANNED, True, Reason.PLANNED)
    status.set_recovery(gang=snapshot.gang_hash)
    assert is_undisturbed(status, snapshot)
    status.set_recovery(waiting_since=timestamp(status.now))
    assert is_undisturbed(status, snapshot) == (on_jobset.job["kind"] == "JobSet")


@pytest.mark.parametrize("code", [128, 137, 138, 143, None])
@pytest.mark.parametrize("index", [0, 1])
def test_a_pod_that_failed_is_replaced_by_the_operator(on_jobset: Any, index: int, code: int | None) -> None:
    end(on_jobset.pods[index], code)
    assert unfinished(on_jobset) == (DeletePods((on_jobset.pods[index],)),)


def test_the_end_of_a_pod_that_is_about_to_be_deleted_is_recorded(on_jobset: Any) -> None:
    on_jobset.pods[1]["spec"] = {"nodeName": "node-1"}
    end(on_jobset.pods[1], 138, json.dumps({"message": "rank 3 was killed", "rank": 3}))
    unfinished(on_jobset)
    status = on_jobset.status()
    cause = "worker-0: rank 3 was killed (exit code 138)"
    assert recorded_ends(status, on_jobset.job) == {"run-worker-0": PodEnd(cause, 138, rank=3, node="node-1")}
    assert recorded_ends(status, {"metadata": {"name": "run", "uid": "another"}}) == {}


def test_a_recorded_end_is_dropped_when_its_place_has_another_pod(on_jobset: Any) -> None:
    for each in on_jobset.pods:
        end(each, 138)
    unfinished(on_jobset)
    assert set(on_jobset.status().recovery.ended_pods) == {"master-0", "worker-0"}
    on_jobset.pass_time(5)
    on_jobset.pods = [pod(on_jobset, "worker")]
    unfinished(on_jobset)
    assert set(on_jobset.status().recovery.ended_pods) == {"master-0"}, "its place is still empty"
    on_jobset.pods.append(pod(on_jobset, "master"))
    unfinished(on_jobset)
    assert on_jobset.status().recovery.ended_pods == {}


def test_of_many_ends_those_of_pods_that_only_lost_a_peer_are_left_out(on_jobset: Any) -> None:
    pods = [{**pod(on_jobset, "worker")} for _ in range(20)]
    for index, each in enumerate(pods):
        each["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] = str(index)
        end(each, 138 if index == 19 else ExitCode.PEER_LOST)
    recovery = record_ends(on_jobset.status().recovery, pods, "run")
    assert len(recovery.ended_pods) == MAX_PODS
    assert "worker-19" in recovery.ended_pods


@pytest.mark.parametrize("code", [1, 127])
def test_a_pod_with_an_exit_code_that_is_not_retried_is_left_to_fail_the_job(
    on_jobset: Any, code: int
) -> None:
    end(on_jobset.pods[1], code)
    assert unfinished(on_jobset) is None


def test_a_worker_that_exits_early_is_replaced(on_jobset: Any) -> None:
    end(on_jobset.pods[1], 0)
    assert unfinished(on_jobset) == (DeletePods((on_jobset.pods[1],)),)


def test_a_master_that_exits_early_is_kept_until_the_jobset_is_complete(on_jobset: Any) -> None:
    """Without its pod, the JobSet's completion would look like success."""
    end(on_jobset.pods[0], 0)
    assert unfinished(on_jobset) is None
    complete(on_jobset)
    cause = "master-0: ended with exit code 0 before the last iteration"
    assert on_jobset.snapshot().early_exit == cause


def test_an_early_exit_whose_pod_is_gone_is_no_success_either(on_jobset: Any) -> None:
    cause = "master-0: ended with exit code 0 before the last iteration"
    on_jobset.ends = {"run-master-0": PodEnd(cause, 0)}
    on_jobset.pods.pop(0)
    complete(on_jobset)
    assert on_jobset.snapshot().early_exit == cause


def test_a_master_that_completed_and_is_gone_is_success(on_jobset: Any) -> None:
    on_jobset.pods.pop(0)
    complete(on_jobset)
    assert on_jobset.snapshot().early_exit is None


def test_a_pod_that_somebody_deletes_is_replaced_without_the_jobs_back_off(on_jobset: Any) -> None:
    on_jobset.pods[1]["metadata"]["deletionTimestamp"] = timestamp(on_jobset.now + 60)
    result = apply_decision(on_jobset.status(), on_jobset.snapshot(), Wait("pods are being deleted"))
    assert result.actions == (ReplacePods((on_jobset.pods[1],)),)


def test_pods_that_a_queue_takes_away_are_left_alone(on_jobset: Any) -> None:
    on_jobset.job["spec"]["suspend"] = True
    on_jobset.pods[1]["metadata"]["deletionTimestamp"] = timestamp(on_jobset.now + 60)
    end(on_jobset.pods[0], 143)
    assert unfinished(on_jobset) is None
    result = apply_decision(on_jobset.status(), on_jobset.snapshot(), Wait("the job has ended"))
    assert result.actions == ()


def test_a_run_that_trains_is_not_re_created_to_avoid_a_node(on_jobset: Any) -> None:
    status = on_jobset.status()
    result = apply_decision(status, on_jobset.snapshot(), Avoid(("node-1",), (), "node-1 failed"))
    assert result.actions == ()
    assert status.recovery.nodes_avoided == ["node-1"]
    on_jobset.write(status)
    assert unfinished(on_jobset) is None


def test_an_interrupted_run_is_re_created_to_avoid_a_node_and_counts_no_restart(on_jobset: Any) -> None:
    on_jobset.pass_time(5)
    on_jobset.pods[1] = pod(on_jobset, "worker")
    unfinished(on_jobset)
    status = on_jobset.status()
    result = apply_decision(status, on_jobset.snapshot(), Avoid(("node-1",), (), "node-1 failed"))
    assert result.actions == (DeleteJob(on_jobset.job),)
    assert status.recovery.outgoing_job == "j"
    assert status.recovery.restarts == 1, "that of the pod that was replaced"
    on_jobset.write(status)
    assert unfinished(on_jobset) == (DeleteJob(on_jobset.job),), "until the job is gone"


def test_a_job_that_could_not_be_created_again_stays_and_the_next_one_avoids_the_node(on_jobset: Any) -> None:
    on_jobset.pass_time(5)
    on_jobset.pods[1] = pod(on_jobset, "worker")
    unfinished(on_jobset)
    status, snapshot = on_jobset.status(), on_jobset.snapshot()
    assert not awaits_another_job(status, snapshot)
    result = apply_decision(status, snapshot, Avoid(("node-1",), (), "node-1 failed"), keeps_job=True)
    assert (result.actions, status.events) == ((), [])
    assert status.recovery.nodes_avoided == ["node-1"]
    assert awaits_another_job(status, snapshot)
    assert unfinished_actions(status, snapshot, keeps_job=True) is None
    assert status.recovery.outgoing_job is None
    on_jobset.write(status)
    assert unfinished(on_jobset) == (DeleteJob(on_jobset.job),), "once it could"


def test_a_run_is_not_re_created_before_the_pod_that_failed_is_replaced_and_counted(on_jobset: Any) -> None:
    on_jobset.pods.pop(1)
    status = on_jobset.status()
    result = apply_decision(status, on_jobset.snapshot(), Avoid(("node-1",), (), "node-1 failed"))
    assert result.actions == ()
    on_jobset.write(status)
    on_jobset.pass_time(5)
    on_jobset.pods.append(pod(on_jobset, "worker"))
    assert unfinished(on_jobset) == (DeleteJob(on_jobset.job),)
    assert on_jobset.status().recovery.restarts == 1


def release_node_1(run: Any) -> tuple[Action, ...]:
    """The run releases node-1, which its job was created to avoid. Returns what follows."""
    run.job = avoiding(run.job, ["node-1"])
    for each in run.pods:
        each["spec"] = {"nodeName": "node-2"}
    status = run.status()
    status.set_recovery(nodes_avoided=["node-1"])
    result = apply_decision(status, run.snapshot(), ReleaseNodes(("node-1",), "no sign any more"))
    assert status.recovery.nodes_avoided == []
    run.write(status)
    return result.actions


def test_a_run_whose_pods_all_have_nodes_is_not_re_created_for_a_node_that_was_released(
    on_jobset: Any,
) -> None:
    assert release_node_1(on_jobset) == ()
    on_jobset.pass_time(5)
    on_jobset.pods[1] = pod(on_jobset, "worker") | {"spec": {"nodeName": "node-3"}}
    assert unfinished(on_jobset) is None, "the next interruption is no reason either"
    assert on_jobset.status().recovery.restarts == 1
    status = on_jobset.status()
    result = apply_decision(status, on_jobset.snapshot(), Avoid(("node-2",), (), "node-2 failed"))
    assert result.actions == (DeleteJob(on_jobset.job),), "other nodes are"


def test_a_run_with_a_pod_that_gets_no_node_is_re_created_to_use_one_that_was_released(
    on_jobset: Any,
) -> None:
    release_node_1(on_jobset)
    on_jobset.pods[1] = unscheduled(on_jobset, "Unschedulable")
    assert unfinished(on_jobset) == (DeleteJob(on_jobset.job),)


def test_a_pod_without_its_pod_group_is_replaced_while_the_job_has_other_nodes_to_avoid(
    on_jobset: Any,
) -> None:
    release_node_1(on_jobset)
    gated = unscheduled(on_jobset, "SchedulingGated")
    gated["spec"]["schedulingGates"] = [{"name": "megatron.training/pod-group"}]
    on_jobset.pods = [gated]
    on_jobset.pass_time(59)
    assert unfinished(on_jobset) is None, "the other one is not created yet"
    on_jobset.pass_time(2)
    assert unfinished(on_jobset) == (DeleteUnboundPods((gated,)),)


def test_a_run_whose_restarts_are_spent_gives_up_its_runtime_too(on_jobset: Any) -> None:
    """Nothing shows it any more once the job is gone."""
    result = apply_decision(on_jobset.status(), on_jobset.snapshot(), Fail("no new checkpoint"))
    runtimes = {"JobSet": [], "TrainJob": [DeleteRuntime(on_jobset.job)]}[on_jobset.job["kind"]]
    assert result.actions == (*runtimes, DeleteJob(on_jobset.job))


def test_images_are_not_pinned_in_templates_that_cannot_be_changed(on_jobset: Any) -> None:
    for each in on_jobset.pods:
        image = {"name": "pytorch", "image": "trainer:1", "imageID": f"trainer@sha256:{'a' * 64}"}
        each["status"]["containerStatuses"] = [image]
    assert on_jobset.snapshot().image_to_pin is None


def test_of_pods_in_one_place_the_newest_counts(on_jobset: Any) -> None:
    failed = on_jobset.pods[1]
    end(failed, 138)
    same_second = pod(on_jobset, "worker")
    same_second["metadata"]["creationTimestamp"] = failed["metadata"]["creationTimestamp"]
    for pods in ([failed, same_second], [same_second, failed]):
        assert newest_by_place(pods) == [same_second]
    on_jobset.pass_time(5)
    newer = pod(on_jobset, "worker")
    end(newer, 138)
    assert newest_by_place([same_second, newer, on_jobset.pods[0]]) == [newer, on_jobset.pods[0]]

"""Why a pod ended, in one line, and whether it was at fault."""

import json
from typing import Any

import pytest
from megatron_operator.lifecycle.pod_termination import PodEnd, pod_end, termination_message


def pod(ended: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if ended is not None:
        status["containerStatuses"] = [{"name": "pytorch", "state": {"terminated": ended}}]
    return {"metadata": {"name": "run-worker-3"}, "spec": {"nodeName": "node-1"}, "status": status}


def deleted(body: dict[str, Any], at: str = "2026-01-01T00:01:00Z", grace: int = 60) -> dict[str, Any]:
    body["metadata"] |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace}
    return body


def disrupted(reason: str, message: str = "") -> dict[str, str]:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


def end_of(body: dict[str, Any]) -> PodEnd:
    end = pod_end(body, "run")
    assert end is not None
    return end


TRAINER = json.dumps(
    {"reason": "WorkerDied", "message": "rank 7: SIGKILL", "checkpointIteration": 50, "rank": 7}
)


@pytest.mark.parametrize(
    ("body", "cause", "exit_code"),
    [
        (pod({"exitCode": 138, "message": TRAINER}), "worker-3: rank 7: SIGKILL (exit code 138)", 138),
        (pod({"exitCode": 137, "reason": "OOMKilled"}), "worker-3: out of memory", 137),
        (
            pod({"exitCode": 1, "message": "Traceback\n  line\nValueError: no"}),
            "worker-3: ValueError: no (exit code 1)",
            1,
        ),
        (pod({"exitCode": 2, "reason": "Error"}), "worker-3: Error (exit code 2)", 2),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
            "worker-3: The node was low on memory.",
            None,
        ),
        (
            pod(conditions=[disrupted("EvictionByEvictionAPI", "node-1 is being drained")]),
            "worker-3: node-1 is being drained",
            None,
        ),
        (deleted(pod(phase="Running")), "worker-3: pod was deleted (on node-1)", None),
    ],
    ids=["trainer", "memory", "log", "silent", "evicted", "drained", "deleted"],
)
def test_the_cause_comes_from_the_component_that_knows_it(
    body: dict[str, Any], cause: str, exit_code: int | None
) -> None:
    end = end_of(body)
    assert (end.cause, end.exit_code, end.node) == (cause, exit_code, "node-1")


def test_the_trainer_names_its_rank_and_checkpoint() -> None:
    end = end_of(pod({"exitCode": 138, "message": TRAINER}))
    assert (end.rank, end.checkpoint_iteration) == (7, 50)


DONE = '{"reason": "Completed", "iteration": 200}'


@pytest.mark.parametrize(
    "body", [pod({"exitCode": 0, "message": DONE}, phase="Succeeded"), pod(phase="Running")]
)
def test_a_running_or_completed_pod_has_no_cause(body: dict[str, Any]) -> None:
    assert pod_end(body, "run") is None


@pytest.mark.parametrize("message", ["", "killed", '{"reason": "Terminated"}'])
def test_exit_code_0_alone_does_not_mean_that_a_trainer_completed(message: str) -> None:
    end = end_of(pod({"exitCode": 0, "message": message}, phase="Succeeded"))
    assert (end.cause, end.exit_code) == ("worker-3: ended with exit code 0 before the last iteration", 0)


def test_a_pod_that_only_lost_its_peers_is_not_at_fault() -> None:
    assert not PodEnd("worker-3: lost its peers", 140).own_fault
    assert PodEnd("worker-3: out of memory", 137).own_fault


@pytest.mark.parametrize(
    ("body", "voluntary"),
    [
        (pod({"exitCode": 143}, conditions=[disrupted("EvictionByEvictionAPI")]), True),
        (pod({"exitCode": 137}, conditions=[disrupted("PreemptionByScheduler")]), True),
        (pod({"exitCode": 143}, conditions=[disrupted("DeletionByDeviceTaintManager")]), True),
        (deleted(pod({"exitCode": 143, "finishedAt": "2026-01-01T00:00:05Z"})), True),
        (deleted(pod({"exitCode": 137, "finishedAt": "2026-01-01T00:00:05Z"})), False),
        # The training-operator deletes what has ended by itself, often within the second.
        (deleted(pod({"exitCode": 143, "finishedAt": "2026-01-01T00:00:00Z"})), False),
        (deleted(pod({"exitCode": 138, "finishedAt": "2026-01-01T00:00:00Z"})), False),
        (pod({"exitCode": 143}), False),
        (pod(phase="Failed", reason="Evicted", conditions=[disrupted("TerminationByKubelet")]), False),
        (pod(phase="Failed", conditions=[disrupted("TerminationByKubelet")]), True),
        # A NoExecute taint on a reachable node is a drain.
        (pod({"exitCode": 143}, conditions=[disrupted("DeletionByTaintManager")]), True),
        (deleted(pod(phase="Running", conditions=[disrupted("DeletionByTaintManager")])), False),
    ],
)
def test_drains_and_preemptions_are_no_failures(body: dict[str, Any], voluntary: bool) -> None:
    assert end_of(body).voluntary is voluntary


@pytest.mark.parametrize("reason", ["DeletionByTaintManager", "DeletionByPodGC"])
def test_a_pod_that_kubernetes_deleted_because_of_its_node_lost_its_node(reason: str) -> None:
    assert end_of(deleted(pod(phase="Running", conditions=[disrupted(reason)]))).node_lost
    assert not end_of(pod({"exitCode": 138})).node_lost


@pytest.mark.parametrize("message", ["", "no JSON", "[1]", '"text"'])
def test_a_message_of_another_program_is_no_termination_message(message: str) -> None:
    assert termination_message(pod({"exitCode": 0, "message": message})) is None

"""Why a pod ended, in one line."""

import json
from typing import Any

import pytest
from megatron_operator.recovery.cause import PodEnd, last_words, pod_end


def pod(ended: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if ended is not None:
        status["containerStatuses"] = [{"name": "pytorch", "state": {"terminated": ended}}]
    return {"metadata": {"name": "run-worker-3"}, "spec": {"nodeName": "node-1"}, "status": status}


TRAINER = json.dumps({"reason": "WorkerDied", "message": "rank 7: SIGKILL", "checkpointIteration": 50})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            pod({"exitCode": 138, "message": TRAINER}),
            PodEnd("worker-3: rank 7: SIGKILL (exit code 138)", 138, 50),
        ),
        (pod({"exitCode": 137, "reason": "OOMKilled"}), PodEnd("worker-3: out of memory", 137)),
        (
            pod({"exitCode": 1, "message": "Traceback\n  line\nValueError: no"}),
            PodEnd("worker-3: ValueError: no (exit code 1)", 1),
        ),
        (pod({"exitCode": 2, "reason": "Error"}), PodEnd("worker-3: Error (exit code 2)", 2)),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
            PodEnd("worker-3: The node was low on memory."),
        ),
        (
            pod(
                conditions=[
                    {"type": "DisruptionTarget", "status": "True", "message": "node-1 is being drained"}
                ]
            ),
            PodEnd("worker-3: node-1 is being drained"),
        ),
        (pod({"exitCode": 0}, phase="Succeeded"), None),
        (pod(phase="Running"), None),
    ],
    ids=["trainer", "memory", "log", "silent", "evicted", "drained", "well", "alive"],
)
def test_the_cause_is_told_by_whoever_knows_it(body: dict[str, Any], expected: PodEnd | None) -> None:
    assert pod_end(body, "run") == expected


def test_a_deleted_pod_tells_its_node() -> None:
    body = pod(phase="Running")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_end(body, "run") == PodEnd("worker-3: pod was deleted (on node-1)")


def test_a_pod_that_only_lost_its_peers_is_not_guilty() -> None:
    assert not PodEnd("worker-3: peers did not come", 140).own_fault
    assert PodEnd("worker-3: out of memory", 137).own_fault


@pytest.mark.parametrize("message", ["", "no JSON", "[1]", '"text"'])
def test_last_words_that_are_none_are_no_error(message: str) -> None:
    assert last_words(pod({"exitCode": 0, "message": message})) == {}

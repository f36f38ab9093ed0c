"""How a pod ended, from Events: anyone in the namespace may have written them."""

from typing import Any

import pytest
from megatron_operator.api.recovery_status import RecoveryStatus
from megatron_operator.lifecycle.incidents import PodReplacement, pods_replaced
from megatron_operator.lifecycle.placement import placement_of
from megatron_operator.lifecycle.pod_end_events import exit_code_in_events, previous_pod_end

SINCE = "2026-01-01T00:00:00Z"
LABELS = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}
POD: dict[str, Any] = {"metadata": {"name": "run-worker-0", "uid": "new", "labels": LABELS}}


def seen_on(node: str) -> str:
    """What the operator keeps of a gang whose Worker 0 it saw on this node."""
    placement = placement_of([bound("master", "node-0"), bound("worker", node)])
    assert placement is not None
    return placement


def bound(kind: str, node: str) -> dict[str, Any]:
    labels = {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": "0"}
    return {"metadata": {"labels": labels}, "spec": {"nodeName": node}}


def event(reason: str, message: str) -> dict[str, Any]:
    involved = {"name": "run-worker-0", "uid": "old"}
    return {"reason": reason, "message": message, "lastTimestamp": SINCE, "involvedObject": involved}


def test_the_exit_code_and_the_node_are_read() -> None:
    exited = event("ExitedWithCode", "Pod: default.run-worker-0 exited with code 138")
    assert exit_code_in_events([exited], "run-worker-0", SINCE) == 138
    scheduled = event("Scheduled", "Successfully assigned default/run-worker-0 to node-1.example.com")
    end = previous_pod_end(POD, "worker-0", 138, [scheduled], seen_on("node-1.example.com"))
    assert end is not None
    assert (end.node, end.exit_code) == ("node-1.example.com", 138)


@pytest.mark.parametrize("code", ["9" * 900, "\u0663\u0663", "-1"])
def test_a_code_that_no_container_ends_with_is_ignored(code: str) -> None:
    forged = event("ExitedWithCode", f"Pod: default.run-worker-0 exited with code {code}")
    assert exit_code_in_events([forged], "run-worker-0", SINCE) is None


@pytest.mark.parametrize("node", ["x" * 900, "<node>", "Node", "\u8a9e"])
def test_a_name_that_no_node_has_is_ignored(node: str) -> None:
    end = previous_pod_end(POD, "worker-0", 138, [event("Scheduled", f"assigned to {node}")], seen_on(node))
    assert end is not None
    assert end.node is None


@pytest.mark.parametrize("placement", [seen_on("node-1"), "", None])
def test_events_that_somebody_has_written_blame_no_node_where_the_pod_did_not_run(
    placement: str | None,
) -> None:
    forged = [event("Scheduled", "assigned to control-plane-1"), event("TaintManagerEviction", "")]
    end = previous_pod_end(POD, "worker-0", None, forged, placement)
    assert end is not None
    assert end.cause == "worker-0: its node was lost"
    counted = pods_replaced(
        RecoveryStatus(), [PodReplacement("worker-0", end)], 1.8e9, checkpoint=None, iteration=None
    )
    assert counted.node_failures == {}
    assert counted.node_evidence == {}


def test_a_gang_is_remembered_once_all_of_its_pods_are_bound() -> None:
    bound_late = bound("worker", "node-1")
    del bound_late["spec"]["nodeName"]
    assert placement_of([bound("master", "node-0"), bound_late]) is None
    assert placement_of([bound("master", "node-0"), bound("master", "node-1")]) is None, "one is missing"


def test_the_memory_of_two_thousand_pods_is_small() -> None:
    pods = [bound("master", "n")] + [bound("worker", f"node-{i}" * 6) for i in range(1999)]
    for index, pod in enumerate(pods[1:]):
        pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] = str(index)
    assert len(placement_of(pods) or "") == 12_000

"""Which pods that are being deleted would otherwise stay forever."""

from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus, node_state, stuck
from megatron_operator.lifecycle.snapshot import abandoned_pods

NOW = 1_800_000_000.0


def deleting(overdue: float, **status: Any) -> dict[str, Any]:
    """A pod whose grace period ended `overdue` seconds ago."""
    return {
        "metadata": {"name": "run-worker-0", "deletionTimestamp": timestamp(NOW - overdue)},
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


@pytest.mark.parametrize(
    ("ready", "state"),
    [
        ("True", NodeState.READY),
        ("False", NodeState.NOT_READY),
        ("Unknown", NodeState.UNREACHABLE),
        (None, NodeState.UNREACHABLE),
    ],
)
def test_the_ready_condition_sets_the_state_of_a_node(ready: str | None, state: NodeState) -> None:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    assert node_state({"metadata": {"name": "n"}, "status": {"conditions": conditions}}) is state


@pytest.mark.parametrize(
    ("state", "since", "overdue", "expected"),
    [
        (NodeState.UNREACHABLE, 29, -290, False),
        (NodeState.UNREACHABLE, 30, -290, True),
        (NodeState.UNREACHABLE, 10, 1, True),
        (NodeState.GONE, NOW, -290, True),
        (NodeState.NOT_READY, 500, 20, False),
        (NodeState.NOT_READY, 500, 40, True),
        (NodeState.READY, 500, 4000, False),
    ],
)
def test_only_pods_that_no_kubelet_ends_are_abandoned(
    state: NodeState, since: float, overdue: float, expected: bool
) -> None:
    pod = deleting(overdue)
    found = abandoned_pods([pod], {"node-1": NodeStatus(state, NOW - since)}, NOW)
    assert found == ((pod,) if expected else ())


@pytest.mark.parametrize(
    ("overdue", "phase", "finalizers", "expected"),
    [
        (61, "Failed", [], True),
        (61, "Succeeded", [], True),
        (59, "Failed", [], False),
        (61, "Failed", ["batch.kubernetes.io/job-tracking"], False),
        (4000, "Running", [], False),
    ],
)
def test_a_pod_that_has_ended_and_is_not_removed_from_a_ready_node_is_abandoned(
    overdue: float, phase: str, finalizers: list[str], expected: bool
) -> None:
    pod = deleting(overdue, phase=phase)
    pod["metadata"]["finalizers"] = finalizers
    nodes = {"node-1": NodeStatus(NodeState.READY, NOW - 500)}
    assert stuck(pod, NOW) is expected
    assert abandoned_pods([pod], nodes, NOW) == ((pod,) if expected else ())


def test_a_pod_that_is_not_being_deleted_is_not_abandoned() -> None:
    pod = deleting(100)
    del pod["metadata"]["deletionTimestamp"]
    assert abandoned_pods([pod], {"node-1": NodeStatus(NodeState.GONE)}, NOW) == ()


def test_without_access_to_nodes_the_pods_condition_and_a_longer_grace_decide() -> None:
    evicted = {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]
    }
    assert abandoned_pods([deleting(100, **evicted)], {}, NOW) == ()
    assert len(abandoned_pods([deleting(130, **evicted)], {}, NOW)) == 1
    assert abandoned_pods([deleting(4000)], {}, NOW) == (), "a pod that a user deleted may end slowly"

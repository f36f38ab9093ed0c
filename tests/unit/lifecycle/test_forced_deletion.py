"""Pods that are deleted by force leave an Event, whatever the run does."""

from dataclasses import replace
from typing import Any

from megatron_operator.api.conditions import Condition
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.actions import ForceDeletePods
from megatron_operator.lifecycle.finished_job import clean_up
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.suspension import end_suspended_pods

GONE = {"node-1": NodeStatus(NodeState.GONE)}


def leaving(run: Any, nodes: dict[str, NodeStatus]) -> RunSnapshot:
    """The run without a job, whose pods are being deleted, on node-0 and node-1."""
    for number, pod in enumerate(run.pods):
        pod["spec"] = {"nodeName": f"node-{number}"}
        pod["metadata"]["deletionTimestamp"] = timestamp(run.now + 30)
    return replace(run.snapshot(), job=None, pods=(), leftover_pods=tuple(run.pods), nodes=nodes)


def test_a_suspended_run_reports_the_pods_that_it_deletes_by_force(run: Any) -> None:
    status = run.status()
    result = end_suspended_pods(status, leaving(run, GONE))
    assert result is not None
    assert result.actions == (ForceDeletePods((run.pods[1],)),)
    (event,) = status.events
    assert (event.reason, event.warning) == ("PodDeletedByForce", True)
    assert event.message == "run-worker-0 is being deleted on node-1, which does not end it"


def test_a_failed_run_reports_the_pods_that_it_deletes_by_force(run: Any) -> None:
    status = run.status()
    status.fail("RestartsSpent", "too many")
    status.set_condition(Condition.FAILED, True, "RestartsSpent")
    before = len(status.events)
    assert clean_up(status, leaving(run, GONE)).actions == (ForceDeletePods((run.pods[1],)),)
    assert [event.reason for event in status.events[before:]] == ["PodDeletedByForce"]


def test_pods_whose_kubelet_ends_them_leave_no_event(run: Any) -> None:
    status = run.status()
    result = end_suspended_pods(status, leaving(run, {}))
    assert result is not None
    assert result.actions == (ForceDeletePods(()),)
    assert status.events == []

"""Which pods are named as those that their kubelet does not end."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.reasons import Reason
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.lingering_pods import LINGERING, name_lingering_pods
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.suspension import end_suspended_pods

PAST = LINGERING + 1


def suspended(run: Any, past: float, state: NodeState | None = NodeState.READY) -> StatusBuilder:
    """The status of a run without a job whose pods should have ended so many seconds ago."""
    for number, pod in enumerate(run.pods):
        pod["spec"] = {"nodeName": f"node-{number}"}
        pod["metadata"]["deletionTimestamp"] = timestamp(run.now - past)
    names = [pod["spec"]["nodeName"] for pod in run.pods]
    nodes = {} if state is None else {name: NodeStatus(state, run.now - past) for name in names}
    status: StatusBuilder = run.status()
    snapshot = replace(run.snapshot(), job=None, pods=(), leftover_pods=tuple(run.pods), nodes=nodes)
    end_suspended_pods(status, snapshot)
    status.events.clear()
    name_lingering_pods(status, snapshot)
    run.write(status)
    return status


def message(status: StatusBuilder) -> str:
    running = status.condition(Condition.RUNNING)
    assert running is not None
    return running.message


@pytest.mark.parametrize("state", [NodeState.READY, None], ids=["ready", "may not be read"])
def test_pods_that_stay_long_after_their_grace_period_are_named_in_one_event(
    run: Any, state: NodeState | None
) -> None:
    status = suspended(run, PAST, state)
    due = timestamp(run.now - PAST)
    named = f"run-master-0 on node-0 (due {due}), run-worker-0 on node-1 (due {due})"
    assert message(status) == f"2 pods are ending; not ended by their kubelet: {named}"
    [event] = status.events
    assert (event.reason, event.warning, event.message.partition(": ")[0]) == ("PodNotEnding", True, named)


def test_the_same_pods_again_change_nothing(run: Any) -> None:
    before = message(suspended(run, PAST))
    run.pass_time(10)
    status = suspended(run, PAST + 10)
    assert (message(status), status.events, status.changed()) == (before, [], False)


@pytest.mark.parametrize(
    ("past", "state"),
    [(LINGERING - 1, NodeState.READY), (PAST, NodeState.NOT_READY), (PAST, NodeState.UNREACHABLE)],
)
def test_pods_that_may_still_end_or_whose_node_is_lost_are_not_named(
    run: Any, past: float, state: NodeState
) -> None:
    status = suspended(run, past, state)
    assert (message(status), status.events) == ("2 pods are ending", [])


def test_a_pod_that_has_ended_is_not_named(run: Any) -> None:
    for pod in run.pods:
        pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
        pod["status"]["phase"] = "Failed"
    assert message(suspended(run, PAST)) == "2 pods are ending"


def test_of_a_whole_gang_a_few_pods_are_named(run: Any) -> None:
    run.pods = [run.pod("worker") for _ in range(1000)]
    for number, pod in enumerate(run.pods):
        pod["metadata"]["name"] = f"run-worker-{number:03}"
    found = message(suspended(run, PAST))
    assert found.count("run-worker-") == 3
    assert found.endswith("run-worker-002 on node-2 (due 2027-01-15T07:57:59Z) and 997 more")


def test_a_run_that_has_ended_names_none(run: Any) -> None:
    suspended(run, PAST)
    status = run.status()
    status.set(phase=Phase.FAILED)
    name_lingering_pods(status, replace(run.snapshot(), job=None, leftover_pods=tuple(run.pods)))
    assert (message(status), status.events) == ("2 pods are ending", [])


@pytest.mark.parametrize("reason", [Reason.LEFT_EARLY, Reason.GANG_RESTARTED])
def test_a_message_that_becomes_the_cause_of_an_incident_stays_as_it_is(run: Any, reason: Reason) -> None:
    suspended(run, PAST)
    status = run.status()
    status.set(phase=Phase.RECOVERING)
    status.set_condition(Condition.RUNNING, False, reason, "worker-0 exited with 0")
    name_lingering_pods(status, replace(run.snapshot(), job=None, leftover_pods=tuple(run.pods)))
    assert message(status) == "worker-0 exited with 0"

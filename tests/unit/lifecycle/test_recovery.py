"""From decisions to actions: recorded first, completed by the next reconcile if needed, counted once."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.recovery_status import NodeMaintenance
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.accepted_spec import recovery_limits
from megatron_operator.lifecycle.actions import (
    Action,
    AvoidNodes,
    DeleteJob,
    DeletePods,
    DeleteUnboundPods,
    ForceDeletePods,
    Result,
)
from megatron_operator.lifecycle.job_status import adopt_job
from megatron_operator.lifecycle.node_evidence import add_evidence
from megatron_operator.lifecycle.node_state import STUCK_GRACE
from megatron_operator.lifecycle.observation import Capacity, MaintenanceMove
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.recovery import apply_decision, pods_to_move, unfinished_actions
from megatron_operator.lifecycle.recovery_observation import observe, report_kept_nodes
from megatron_operator.lifecycle.recovery_policy import (
    Avoid,
    ChangeDomain,
    Fail,
    ForceDelete,
    Move,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
    decide,
)
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.status_update import update_status
from megatron_operator.manifests.node_avoidance import avoiding


def template() -> dict[str, Any]:
    return {"spec": {"containers": []}}


@pytest.fixture
def placed(run: Any) -> Any:
    """The run, training on two nodes."""
    run.body["spec"] = {"accelerator": {"count": 4}}
    run.job["spec"]["nprocPerNode"] = "2"
    for replica in run.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = template()
    for index, pod in enumerate(run.pods):
        pod["spec"] = {"nodeName": f"node-{index}"}
    run.report(iteration=50, checkpointIteration=40)
    status = run.status()
    adopt_job(status, run.job)
    update_status(status, run.snapshot())
    run.write(status)
    return run


def apply(run: Any, decision: Any) -> tuple[StatusBuilder, tuple[Action, ...]]:
    status = run.status()
    result = apply_decision(status, run.snapshot(), decision)
    run.write(status)
    return status, result.actions


def unfinished(run: Any) -> tuple[Action, ...] | None:
    """Actions that the next reconcile finds unfinished."""
    status = run.status()
    update_status(status, run.snapshot())
    result: Result | None = unfinished_actions(status, run.snapshot())
    run.write(status)
    return None if result is None else result.actions


def test_nothing_is_unfinished_while_the_run_trains(placed: Any) -> None:
    assert unfinished(placed) is None


def test_a_pod_that_no_policy_assigned_to_its_pod_group_is_replaced_after_a_while(placed: Any) -> None:
    pod = placed.pods[1]
    pod["spec"] = {"schedulingGates": [{"name": "megatron.training/pod-group"}]}
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    pod["status"] = {"phase": "Pending", "conditions": [gated]}
    pod["metadata"]["creationTimestamp"] = timestamp(placed.now - 59)
    assert unfinished(placed) is None
    pod["metadata"]["creationTimestamp"] = timestamp(placed.now - 61)
    assert unfinished(placed) == (DeleteUnboundPods((pod,)),)
    pod["spec"]["schedulingGates"][0]["name"] = "kueue.x-k8s.io/topology"
    assert unfinished(placed) is None


def test_a_resize_deletes_the_job_even_if_the_first_attempt_was_lost(placed: Any) -> None:
    status, actions = apply(placed, Resize(2, "only 2 of 4 accelerators are available"))
    assert actions == (DeleteJob(placed.job),)
    assert status.phase == Phase.RECOVERING
    assert unfinished(placed) == actions


def test_a_change_of_domain_deletes_the_job_and_costs_no_restart(placed: Any) -> None:
    waiting = placed.status()
    waiting.set_recovery(waiting_since=timestamp(placed.now - 120))
    placed.write(waiting)
    status, actions = apply(placed, ChangeDomain("its domain has no room"))
    assert actions == (DeleteJob(placed.job),)
    assert status.recovery.waiting_since is None, "the pods of the new job begin to wait"
    assert unfinished(placed) == actions
    assert status.recovery.restarts_since_checkpoint == 0
    assert [event.message for event in status.events if event.reason == "DomainChanged"] == [
        "continues in another topology domain: its domain has no room"
    ]


def test_the_job_after_a_resize_keeps_the_count_of_restarts(placed: Any) -> None:
    placed.replace_worker()
    unfinished(placed)
    before, _ = apply(placed, Resize(2, "only 2 of 4 accelerators are available"))
    assert before.recovery.restarts_since_checkpoint == 1
    placed.job = placed.job | {"metadata": placed.job["metadata"] | {"uid": "j2"}}
    status = placed.status()
    adopt_job(status, placed.job)
    assert status.recovery.restarts_since_checkpoint == 1
    assert status.recovery.outgoing_job is None
    assert status.recovery.elastic is not None
    assert status.is_true(Condition.RECOVERING)


def test_a_job_that_somebody_else_replaced_starts_a_new_count(placed: Any) -> None:
    placed.replace_worker()
    unfinished(placed)
    placed.job = placed.job | {"metadata": placed.job["metadata"] | {"uid": "j2"}}
    status = placed.status()
    adopt_job(status, placed.job)
    assert status.recovery.restarts_since_checkpoint == 0
    assert not status.is_true(Condition.RECOVERING)


def test_the_job_is_patched_until_it_avoids_the_nodes_in_the_status(placed: Any) -> None:
    status, actions = apply(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    assert status.recovery.nodes_avoided == ["node-1"]
    assert actions == (AvoidNodes(placed.job, frozenset({"node-1"})),)
    assert unfinished(placed) == actions, "until the job has the nodes itself"
    placed.job = avoiding(placed.job, ["node-1"])
    assert unfinished(placed) is None, "pods that train stay where they are"


def test_pods_on_an_avoided_node_move_while_the_run_is_interrupted_and_count_no_restart(placed: Any) -> None:
    apply(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    placed.job = avoiding(placed.job, ["node-1"])
    placed.pass_time(5)
    placed.replace_worker()
    placed.pods[1]["spec"] = {"nodeName": "node-1"}
    assert unfinished(placed) == (DeletePods((placed.pods[1],)),)
    placed.pass_time(5)
    placed.replace_worker()
    placed.pods[1]["spec"] = {"nodeName": "node-2"}
    assert unfinished(placed) is None
    assert placed.status().recovery.restarts == 1


def test_a_run_whose_nodes_kueue_has_chosen_is_re_created_to_avoid_one_once_it_is_interrupted(
    placed: Any,
) -> None:
    for replica in placed.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    apply(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    assert unfinished(placed) is None, "pods that train stay where they are"
    placed.pass_time(5)
    placed.replace_worker()
    placed.pods[1]["spec"] = {"nodeName": "node-1"}
    assert unfinished(placed) == (DeleteJob(placed.job),)


def test_pods_without_a_node_are_re_created_when_a_node_is_released(placed: Any) -> None:
    apply(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    avoided = avoiding(placed.job, ["node-1"])
    placed.job = avoided
    placed.pass_time(5)
    placed.pods[1] = placed.pod("worker", "Pending")
    placed.pods[1]["spec"] = avoided["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    placed.pods[1]["status"]["conditions"] = [unschedulable]
    assert unfinished(placed) is None
    status, _ = apply(placed, ReleaseNodes(("node-1",), "pods could not be scheduled"))
    assert status.recovery.nodes_avoided == []
    placed.job = avoiding(placed.job, [])
    assert unfinished(placed) == (DeleteUnboundPods((placed.pods[1],)),)


def test_pods_of_a_lost_node_are_force_deleted_and_the_node_is_recorded_once(placed: Any) -> None:
    placed.pods[1]["metadata"]["deletionTimestamp"] = timestamp(placed.now)
    decision = ForceDelete(("run-worker-0",), "node-1: unreachable")
    status, actions = apply(placed, decision)
    assert actions == (ForceDeletePods((placed.pods[1],)),)
    assert status.recovery.history[-1].kind == "node"
    again, actions = apply(placed, decision)
    assert actions == (ForceDeletePods((placed.pods[1],)),)
    assert again.recovery == status.recovery


def test_a_pod_that_has_ended_and_is_not_removed_is_force_deleted_without_blame_for_its_node(
    placed: Any,
) -> None:
    placed.pods[1]["status"]["phase"] = "Failed"
    placed.pods[1]["metadata"]["deletionTimestamp"] = timestamp(placed.now)
    assert unfinished(placed) is None
    placed.pass_time(STUCK_GRACE + 1)
    status = placed.status()
    result = unfinished_actions(status, placed.snapshot())
    assert result is not None
    assert result.actions == (ForceDeletePods((placed.pods[1],)),)
    assert status.recovery.node_failures == {}
    (event,) = status.events
    assert (event.reason, event.warning) == ("PodDeletedByForce", True)
    assert event.message == "run-worker-0 on node-1 has ended, and was not removed"


def test_a_move_keeps_places_for_the_pods_of_all_nodes_that_it_avoids_and_deletes_them_together(
    placed: Any,
) -> None:
    entry = NodeMaintenance(sign="node label x", time=timestamp(placed.now), leave_at=timestamp(placed.now))
    later = entry.model_copy(update={"leave_at": timestamp(placed.now + 3600)})
    status = placed.status()
    status.set_recovery(maintenance={"node-0": later, "node-1": entry})
    placed.write(status)
    move = MaintenanceMove({"node-1": "node label x"}, dict.fromkeys(("node-1", "node-0"), "node label x"))
    assert pods_to_move(placed.snapshot(), move) == 2
    status, actions = apply(placed, Move(move))
    avoided = frozenset({"node-0", "node-1"})
    assert actions == (AvoidNodes(placed.job, avoided), DeletePods(tuple(placed.pods), saves=True))
    incident = status.recovery.history[-1]
    assert (incident.pod, incident.node) == ("worker-0", "node-1"), "where it is due"


def test_a_gang_restart_is_completed_by_later_reconciles(placed: Any) -> None:
    _, actions = apply(placed, RestartGang("no new iteration"))
    assert actions == (DeletePods(tuple(placed.pods)),)
    assert unfinished(placed) == actions


def test_a_gang_restart_is_over_once_all_its_pods_are_new(placed: Any) -> None:
    apply(placed, RestartGang("no new iteration"))
    placed.pass_time(10)
    placed.pods[0] = placed.pod("master")
    assert unfinished(placed) == (DeletePods((placed.pods[1],)),)
    assert placed.status().recovery.restart_before is not None
    placed.replace_worker()
    unfinished(placed)
    assert placed.status().recovery.restart_before is None


def test_the_status_of_a_gang_restart_has_whether_the_pods_hung(placed: Any) -> None:
    status, _ = apply(placed, RestartGang("no new iteration", hang=True))
    assert status.recovery.history[-1].hang is True


def test_a_failed_run_releases_its_accelerators(placed: Any) -> None:
    status, actions = apply(placed, Fail("3 restarts brought no new checkpoint"))
    assert (status.phase, actions) == (Phase.FAILED, (DeleteJob(placed.job),))


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_jump_does_not_end_a_run(placed: Any, jump: float) -> None:
    placed.now += jump
    placed.reading = replace(placed.reading, answered=placed.now, unmoved=2.0)
    status = placed.status()
    update_status(status, placed.snapshot())
    seen = observe(status, placed.snapshot(), recovery_limits(status), Capacity())
    assert isinstance(decide(seen), Wait)


def test_a_drained_pod_costs_no_budget_and_is_no_failure_of_the_node(placed: Any) -> None:
    placed.pass_time(5)
    placed.ends = {
        "run-worker-0": PodEnd(
            "worker-0: Eviction API", 143, node="node-1", disruption="EvictionByEvictionAPI"
        )
    }
    placed.replace_worker()
    unfinished(placed)
    recovery = placed.status().recovery
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 0)
    assert recovery.node_failures == {}


def kept(run: Any, *nodes: str, places: dict[str, int]) -> tuple[list[str], dict[str, str | None]]:
    """The Events, and why each node is not avoided, once these have evidence and nodes have room for pods."""
    status = run.status()
    for index, node in enumerate(nodes):
        cause = f"ECC {'x' * index}"
        status.set(recovery=add_evidence(status.recovery, node, "DeviceMemory", cause, run.now))
    capacity = Capacity(places=places)
    report_kept_nodes(status, observe(status, run.snapshot(), recovery_limits(status), capacity))
    run.write(status)
    evidence = status.recovery.node_evidence
    events = [f"{event.reason}: {event.message}" for event in status.events]
    return events, {node: each.not_avoided for node, each in evidence.items()}


POOL = {f"node-{index}": 1 for index in range(5)}
SHARE = "platform.badNodes.maxShare 0.1 of the nodes allows 1 node"


def test_a_cap_that_keeps_a_bad_node_in_use_is_one_event_and_stands_in_the_status(placed: Any) -> None:
    events, why = kept(placed, "node-0", "node-1", places=POOL)
    assert events == [
        "NodeNotAvoided: node-1 has DeviceMemory (ECC x), but the run does not avoid it: " + SHARE
    ]
    assert why == {"node-0": None, "node-1": SHARE}
    assert kept(placed, places=POOL) == ([], why), "reported once"
    apply(placed, Avoid(("node-0", "node-1"), (), "the cap was raised"))
    assert kept(placed, places=POOL) == ([], {"node-0": None, "node-1": None})


def test_a_bad_node_without_which_the_run_has_no_room_is_an_event(placed: Any) -> None:
    events, why = kept(placed, "node-0", places={"node-0": 1, "node-1": 1})
    assert len(events) == 1
    assert why == {"node-0": "the other nodes have no room for all 2 pods"}


class CountedPlaces(dict[str, int]):
    """Places of a cluster, which count how often somebody goes through all of them."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_bad_nodes_are_chosen_once_for_status_and_decision(placed: Any) -> None:
    status, places = placed.status(), CountedPlaces(POOL)
    status.set(recovery=add_evidence(status.recovery, "node-0", "DeviceMemory", "ECC", placed.now))
    seen = observe(status, placed.snapshot(), recovery_limits(status), Capacity(places=places))
    before = places.reads
    report_kept_nodes(status, seen)
    assert isinstance(decide(seen), Avoid)
    assert places.reads == before + 1

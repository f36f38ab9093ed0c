"""From decisions to steps: written down first, finished by whoever looks next, done once."""

from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.times import timestamp
from megatron_operator.controller.actions import Step
from megatron_operator.controller.capacity_finder import Rooms
from megatron_operator.controller.children import adopt
from megatron_operator.lifecycle import (
    Avoid,
    Fail,
    ForceDelete,
    PodEnd,
    ReleaseNodes,
    Resize,
    RestartGang,
    Wait,
)
from megatron_operator.lifecycle.recovery import carry_out, limits_of, observation, unfinished
from megatron_operator.lifecycle.recovery_policy import decide
from megatron_operator.lifecycle.status_builder import Draft
from megatron_operator.lifecycle.status_update import follow
from megatron_operator.manifests.node_avoidance import avoiding


def template() -> dict[str, Any]:
    return {"spec": {"containers": []}}


@pytest.fixture
def placed(run: Any) -> Any:
    """The run in training on two nodes."""
    run.body["spec"] = {"accelerator": {"count": 4}}
    run.job["spec"]["nprocPerNode"] = "2"
    for replica in run.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = template()
    for index, pod in enumerate(run.pods):
        pod["spec"] = {"nodeName": f"node-{index}"}
    run.say(iteration=50, checkpointIteration=40)
    draft = run.draft()
    adopt(draft, run.job)
    follow(draft, run.scene())
    run.keep(draft)
    return run


def act(run: Any, decision: Any) -> tuple[Draft, Step]:
    draft = run.draft()
    step = carry_out(draft, run.scene(), decision)
    run.keep(draft)
    return draft, step


def left_to_do(run: Any) -> Step | None:
    draft = run.draft()
    follow(draft, run.scene())
    step = unfinished(draft, run.scene())
    run.keep(draft)
    return step


def test_nothing_is_left_to_do_while_all_is_well(placed: Any) -> None:
    assert left_to_do(placed) is None


def test_a_resize_deletes_the_job_even_if_its_first_attempt_never_came(placed: Any) -> None:
    draft, step = act(placed, Resize(2, "2 of 4 accelerators could be had"))
    assert step.delete_job == placed.job
    assert draft.phase == Phase.RECOVERING
    again = left_to_do(placed)
    assert again is not None
    assert again.delete_job == placed.job


def test_the_job_that_follows_a_resize_keeps_what_was_counted(placed: Any) -> None:
    placed.replace_worker()
    left_to_do(placed)
    before, _ = act(placed, Resize(2, "2 of 4 accelerators could be had"))
    assert before.recovery.restarts_since_checkpoint == 1
    placed.job = placed.job | {"metadata": placed.job["metadata"] | {"uid": "j2"}}
    draft = placed.draft()
    adopt(draft, placed.job)
    assert draft.recovery.restarts_since_checkpoint == 1
    assert draft.recovery.outgoing_job is None
    assert draft.recovery.elastic is not None
    assert draft.is_true(Condition.RECOVERING)


def test_a_job_that_somebody_else_replaced_begins_a_new_count(placed: Any) -> None:
    placed.replace_worker()
    left_to_do(placed)
    placed.job = placed.job | {"metadata": placed.job["metadata"] | {"uid": "j2"}}
    draft = placed.draft()
    adopt(draft, placed.job)
    assert draft.recovery.restarts_since_checkpoint == 0
    assert not draft.is_true(Condition.RECOVERING)


def test_the_job_is_brought_to_what_the_status_avoids(placed: Any) -> None:
    draft, step = act(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    assert draft.recovery.nodes_avoided == ["node-1"]
    assert step.keep_off == (placed.job, frozenset({"node-1"}))
    assert left_to_do(placed) == step, "until the job says so itself"
    placed.job = avoiding(placed.job, ["node-1"])
    assert left_to_do(placed) is None, "pods that train stay where they are"


def test_pods_on_an_avoided_node_move_while_the_run_is_interrupted_and_are_no_restart(placed: Any) -> None:
    act(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    placed.job = avoiding(placed.job, ["node-1"])
    placed.pass_time(5)
    placed.replace_worker()
    placed.pods[1]["spec"] = {"nodeName": "node-1"}
    step = left_to_do(placed)
    assert step is not None
    assert step.delete_pods == [placed.pods[1]]
    placed.pass_time(5)
    placed.replace_worker()
    placed.pods[1]["spec"] = {"nodeName": "node-2"}
    assert left_to_do(placed) is None
    assert placed.draft().recovery.restarts == 1


def test_pods_without_a_node_are_made_anew_when_a_node_is_released(placed: Any) -> None:
    act(placed, Avoid(("node-1",), (), "node-1 failed 2 times"))
    held = avoiding(placed.job, ["node-1"])
    placed.job = held
    placed.pass_time(5)
    placed.pods[1] = placed.pod("worker", "Pending")
    placed.pods[1]["spec"] = held["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    no_place = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    placed.pods[1]["status"]["conditions"] = [no_place]
    assert left_to_do(placed) is None
    draft, _ = act(placed, ReleaseNodes(("node-1",), "pods could not be placed"))
    assert draft.recovery.nodes_avoided == []
    placed.job = avoiding(placed.job, [])
    step = left_to_do(placed)
    assert step is not None
    assert step.delete_unbound == [placed.pods[1]]


def test_pods_of_a_dead_node_are_deleted_by_force_and_the_node_is_told(placed: Any) -> None:
    placed.pods[1]["metadata"]["deletionTimestamp"] = timestamp(placed.now)
    decision = ForceDelete(("run-worker-0",), "node-1: unreachable")
    draft, step = act(placed, decision)
    assert step.force_delete == [placed.pods[1]]
    assert draft.recovery.history[-1].kind == "node"
    again, step = act(placed, decision)
    assert step.force_delete == [placed.pods[1]]
    assert again.recovery == draft.recovery, "told once"


def test_a_gang_restart_is_carried_out_to_its_end(placed: Any) -> None:
    _, step = act(placed, RestartGang("no new iteration"))
    assert step.delete_pods == placed.pods
    left = left_to_do(placed)
    assert left is not None
    assert left.delete_pods == placed.pods


def test_a_run_that_is_given_up_releases_its_accelerators(placed: Any) -> None:
    draft, step = act(placed, Fail("3 restarts brought no new checkpoint"))
    assert (draft.phase, step.delete_job) == (Phase.FAILED, placed.job)


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_jumps_ends_no_run(placed: Any, jump: float) -> None:
    placed.now += jump
    placed.reading = replace(placed.reading, answered=placed.now, unmoved=2.0)
    draft = placed.draft()
    follow(draft, placed.scene())
    seen = observation(draft, placed.scene(), limits_of(draft), Rooms())
    assert isinstance(decide(seen), Wait)


def test_a_drained_pod_costs_no_budget_and_blames_no_node(placed: Any) -> None:
    placed.pass_time(5)
    placed.ends = {
        "run-worker-0": PodEnd(
            "worker-0: Eviction API", 143, node="node-1", disruption="EvictionByEvictionAPI"
        )
    }
    placed.replace_worker()
    left_to_do(placed)
    recovery = placed.draft().recovery
    assert (recovery.restarts, recovery.restarts_since_checkpoint) == (1, 0)
    assert recovery.node_failures == {}

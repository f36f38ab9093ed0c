"""A run moves off a node before its planned maintenance, against a real API server and simulated nodes."""

import time
from collections.abc import Callable

from megatron_operator.api.times import seconds

from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.conftest import PlatformWith
from tests.control_plane.nodes import Pool
from tests.control_plane.test_bad_nodes import avoided_nodes
from tests.control_plane.world import World

GKE_START = "cloud.google.com/scheduled-maintenance-time"
GKE = "cloud.google.com/impending-node-termination"


def begin(world: World, on: Pool) -> RunState:
    """A run that trains on two nodes of the pool."""
    world.apply("run", scheduling={"nodeSelector": on.selector})
    return world.train("run", 60, checkpoint=50)


def taint(world: World, node: str, *keys: str) -> None:
    """Taint a node as a cloud does that is about to take it; without keys, remove what was set."""
    others = [
        each
        for each in world.api.get("Node", None, node)["spec"].get("taints") or []
        if not each["key"].startswith("cloud.google.com/")
    ]
    taints = [*others, *({"key": key, "effect": "NoSchedule"} for key in keys)]
    world.api.patch("Node", None, node, {"spec": {"taints": taints}})


def set_scheduled(world: World, node: str, status: str) -> None:
    """Set the condition of AKS' node-problem-detector, which keeps no pods away."""
    set_condition(world, node, "VMEventScheduled", status)


def set_condition(world: World, node: str, kind: str, status: str) -> None:
    condition = {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    known = world.api.get("Node", None, node)["status"].get("conditions") or []
    conditions = [*(each for each in known if each["type"] != kind), condition]
    world.api.patch("Node", None, node, {"status": {"conditions": conditions}}, "status")


def test_a_run_moves_once_before_its_node_goes_and_the_node_is_used_again(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(3)
    state = begin(world, nodes)
    leaves, master, worker = state.node_of("worker-0"), state.uid_of("master-0"), state.uid_of("worker-0")
    [spare] = set(nodes.nodes) - {leaves, state.node_of("master-0")}
    taint(world, leaves, GKE)
    world.wait_for(
        "run",
        pods=2,
        without=[worker],
        where=lambda state: state.pods["worker-0"]["spec"].get("nodeName") == spare,
    )
    state = world.train(
        "run", 61, checkpoint=60, generation=2, resumedFrom=60, recovery={"nodesAvoided": [leaves]}
    )
    stays = state.uid_of("master-0") == master
    assert stays == world.backend.changes_templates, "a pod elsewhere stays, unless the whole job is another"
    assert avoided_nodes(state) == [leaves]
    assert state.recovery.get("restarts", 0) == 0
    assert [(each["kind"], each["node"]) for each in state.recovery["history"]] == [("maintenance", leaves)]
    world.wait_for_events("MovedForMaintenance", contains=f"maintenance of {leaves} (node taint {GKE})")
    taint(world, leaves)
    state = world.wait_for("run", where=lambda state: not state.recovery.get("nodesAvoided"))
    assert state.node_of("worker-0") == spare, "nothing moves back"


def schedule(world: World, node: str, start: float) -> None:
    """Label a node as GKE does whose host has maintenance at that time."""
    labels = {GKE_START: str(int(start))}
    world.api.patch("Node", None, node, {"metadata": {"labels": labels}})


def test_a_run_stays_on_a_node_until_its_scheduled_maintenance_is_near(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(3)
    state = begin(world, nodes)
    leaves, before = state.node_of("worker-0"), state.uid_of("worker-0")
    start = time.time() + 7 * 86_400
    schedule(world, leaves, start)
    state = world.wait_for(
        "run",
        where=lambda state: leaves in (state.recovery.get("maintenance") or {}),
        status={"phase": "Training"},
    )
    entry = state.recovery["maintenance"][leaves]
    assert entry["sign"] == f"node label {GKE_START}"
    assert seconds(entry["startsAt"]) == int(start)
    assert state.uid_of("worker-0") == before
    schedule(world, leaves, time.time() + 60)
    world.wait_for_events("MovedForMaintenance", contains=f"maintenance of {leaves} (node label {GKE_START})")
    state = world.wait_for("run", pods=2, without=[before])
    assert avoided_nodes(state) == [leaves]


def test_a_run_trains_on_where_it_has_no_other_place(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(2)
    state = begin(world, nodes)
    leaves, before = state.node_of("worker-0"), state.uid_of("worker-0")
    set_scheduled(world, leaves, "True")
    world.wait_for_events("NodeNotAvoided", contains="the other nodes have no room for all 2 pods now")
    state = world.wait_for("run", status={"phase": "Training"})
    assert state.uid_of("worker-0") == before
    assert not state.recovery.get("history")
    set_scheduled(world, leaves, "False")

    def forgotten() -> bool:
        recipe = world.api.get("MegatronRecipe", world.namespace, "run")
        return not recipe["status"]["recovery"].get("maintenance")

    wait_until("the announcement to be forgotten", forgotten)


def test_a_sign_of_failed_hardware_moves_a_run_only_where_the_platform_has_it(
    world: World, pool: Callable[[int], Pool], platform_with: PlatformWith
) -> None:
    nodes = pool(3)
    state = begin(world, nodes)
    leaves, before = state.node_of("worker-0"), state.uid_of("worker-0")
    set_condition(world, leaves, "SysLogsXIDError", "True")
    state = world.train("run", 61, checkpoint=50)
    assert (state.uid_of("worker-0"), state.recovery.get("maintenance")) == (before, None)
    with platform_with({"badNodes": {"moveRuns": True}}):
        why = f"maintenance of {leaves} (node condition SysLogsXIDError=True)"
        world.wait_for_events("MovedForMaintenance", contains=why)
        state = world.wait_for("run", pods=2, without=[before])
        assert avoided_nodes(state) == [leaves]

"""Runs whose pods must share a rack: placed in one that has room for all, or pending with the reason."""

import time
from collections.abc import Callable
from typing import Any

from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.recovery_policy import DOMAIN_PATIENCE

from testkit.fake_nodes import fake_node
from testkit.run_state import RunState
from tests.control_plane.nodes import Pool
from tests.control_plane.world import World

RACK = "topology.kubernetes.io/rack"


def two_racks(world: World, nodes: Pool, first: int) -> dict[str, str]:
    """Give the first nodes of a pool a rack of their own. Returns the rack of each node."""
    racks = {}
    for index, name in enumerate(nodes.nodes):
        racks[name] = f"{nodes.selector['pool']}-{'a' if index < first else 'b'}"
        world.api.apply(fake_node(name, rack=racks[name], cpu="3", **nodes.selector))
    # It reads all nodes every 30 s only.
    world.operator.stop()
    world.operator.ensure()
    return racks


def apply_in_one_rack(world: World, on: Pool, pods: int, **scheduling: Any) -> None:
    world.apply(
        "run",
        accelerator={"count": 2 * pods, "perNode": 2},
        scheduling={"nodeSelector": on.selector, "requiredTopology": RACK} | scheduling,
    )


def test_a_run_is_placed_in_the_rack_that_has_room_for_all_of_its_pods(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(5)
    racks = two_racks(world, nodes, first=2)
    apply_in_one_rack(world, nodes, 3)
    state = world.train("run", 10, pods=3)
    placed = [pod["spec"]["nodeName"] for pod in state.pods.values()]
    assert sorted(placed) == [name for name in nodes.nodes if racks[name].endswith("-b")]


def test_a_run_whose_rack_lost_a_node_continues_from_its_checkpoint_in_another_rack(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(4)
    racks = two_racks(world, nodes, first=2)
    apply_in_one_rack(world, nodes, 2)
    before = world.train("run", 60, checkpoint=50)
    lost = before.node_of("worker-0")
    nodes.cordon(lost)
    world.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.delete_pod("run-worker-0")
    world.wait_for("run", conditions={"Running": "Unschedulable"})
    world.patch_status("run", recovery={"waitingSince": timestamp(time.time() - DOMAIN_PATIENCE)})
    world.wait_for_events("DomainChanged", contains="has had room for all 2 for")
    state = world.wait_for("run", pods=2, without=before.pod_uids)
    (rack,) = {racks[state.node_of(name)] for name in state.pods}
    assert rack != racks[lost]
    state = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
    assert state.recovery["restarts"] == 1, "of the pod, not of the move"


def test_a_run_for_which_no_rack_has_room_waits_in_one_rack_with_the_reason(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(4)
    racks = two_racks(world, nodes, first=2)
    apply_in_one_rack(world, nodes, 3)

    def names_the_level(state: RunState) -> bool:
        return f"no node; all pods must share {RACK}; " in str(state.conditions["Running"]["message"])

    state = world.wait_for("run", conditions={"Running": "Unschedulable"}, where=names_the_level)
    assert len(state.running_pods) < 3, "four nodes are free, two in each rack"
    assert len({racks[state.node_of(name)] for name in state.running_pods}) <= 1
    assert state.phase == "Starting"

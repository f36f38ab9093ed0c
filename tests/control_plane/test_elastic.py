"""A run without all of its accelerators continues on fewer, and grows when more are free again."""

from collections.abc import Callable

from testkit.run_state import RunState, read_run
from testkit.waiting import wait_until
from tests.control_plane.nodes import Pool
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World

ELASTIC = {"minCount": 2, "shrinkAfter": 1, "growAfter": 1}
LONG_AGO = "2026-01-01T00:00:00Z"


def begin(world: World, on: Pool, run: str = "run") -> str:
    """Start an elastic run of two pods on nodes of a pool. Returns the node of its worker."""
    world.apply(run, scheduling={"nodeSelector": on.selector}, recovery={"elastic": ELASTIC})
    return world.train(run, 60, checkpoint=50).node_of("worker-0")


def lose_worker(world: World, on: Pool, node: str, run: str = "run") -> None:
    """Cordon the worker's node and drain the worker."""
    on.cordon(node)
    world.report(run, phase="rendezvous", iteration=60, checkpointIteration=50)
    world.delete_pod(f"{run}-worker-0")


def wait_for_size(world: World, pods: int, run: str = "run") -> RunState:
    """The state of the run once its job has so many pods and all of them run."""
    return world.wait_for(run, pods=pods, where=lambda state: state.replicas == pods)


def test_a_run_shrinks_to_the_free_nodes_and_grows_back(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(2)
    lost = begin(world, nodes)
    lose_worker(world, nodes, lost)
    wait_for_size(world, 1)
    state = world.train(
        "run", 61, checkpoint=60, pods=1, generation=2, resumedFrom=60,
        recovery={"elastic": {"count": 2}, "restartsByKind": {"resize": 1}},
    )  # fmt: skip
    plan = state.status["plan"]
    assert (plan["worldSize"], plan["tensorModelParallelSize"], plan["globalBatchSize"]) == (2, 2, 16)
    assert state.conditions["Planned"]["message"].endswith("= 2 of 4, in 1 pod of 2")
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"

    nodes.uncordon(lost)
    world.wait_for("run", status={"recovery": {"elastic": {"larger": 4}}})
    # The pause between two resizes is five minutes.
    world.patch_status("run", recovery={"lastResizeTime": LONG_AGO, "lastRestartTime": LONG_AGO})
    world.report("run", 1, iteration=70, checkpointIteration=60, generation=2, resumedFrom=60)
    wait_for_size(world, 2)
    state = world.train(
        "run", 71, checkpoint=70, generation=3, resumedFrom=70,
        recovery={"restartsByKind": {"resize": 2}, "restartsSinceCheckpoint": 0},
    )  # fmt: skip
    assert "elastic" not in state.recovery
    assert state.status["plan"]["worldSize"] == 4
    world.wait_for_events("Shrunk", "Grown")


def test_a_run_is_resized_once_however_often_the_operator_dies(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(2)
    lost = begin(world, nodes)
    with killed_after_every_write(world) as kills:
        lose_worker(world, nodes, lost)
        wait_for_size(world, 1)
    assert kills[0] >= 3
    recovery = world.train(
        "run", 61, checkpoint=60, pods=1, generation=2, resumedFrom=60, recovery={"elastic": {"count": 2}}
    ).recovery
    assert recovery["restartsByKind"]["resize"] == 1
    assert "outgoingJob" not in recovery


def test_of_two_runs_that_could_grow_into_one_node_one_does(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(4)
    lost = {run: begin(world, nodes, run) for run in ("one", "two")}
    for run, node in lost.items():
        lose_worker(world, nodes, node, run)
        wait_for_size(world, 1, run)
        world.train(run, 61, checkpoint=60, pods=1, generation=2, resumedFrom=60)
    nodes.uncordon(lost["one"])
    for run in lost:
        world.wait_for(run, status={"recovery": {"elastic": {"larger": 4}}})
    for run in lost:
        world.patch_status(run, recovery={"lastResizeTime": LONG_AGO, "lastRestartTime": LONG_AGO})
        world.report(run, 1, iteration=70, checkpointIteration=60, generation=2, resumedFrom=60)

    def pods_of(run: str) -> int:
        state = read_run(world.api, world.namespace, run, world.job_kind)
        return state.replicas if state else 0

    grown = wait_until("a run to grow", lambda: next((run for run in lost if pods_of(run) == 2), None))
    [other] = lost.keys() - {grown}
    wait_for_size(world, 2, grown)
    world.train(grown, 71, checkpoint=70, generation=3, resumedFrom=70)
    state = world.wait_for(other, where=lambda state: "larger" not in state.recovery["elastic"])
    assert state.replicas == 1
    assert state.recovery["restartsByKind"]["resize"] == 1, "it went on training"

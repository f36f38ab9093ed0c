"""A run that cannot have its accelerators goes on with those there are, and takes more when they are back."""

from collections.abc import Callable

from testkit.api_server import Object
from tests.control_plane.conftest import Pool
from tests.control_plane.eventually import eventually
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World

ELASTIC = {"minCount": 2, "shrinkAfter": 1, "growAfter": 1}
LONG_AGO = "2026-01-01T00:00:00Z"


def begin(world: World, on: Pool) -> str:
    """An elastic run of two pods on a pool of two nodes; the node of its worker."""
    world.apply("run", scheduling={"nodeSelector": on.selector}, recovery={"elastic": ELASTIC})
    world.train("run", 60, checkpoint=50)
    return str(world.api.get("Pod", world.namespace, "run-worker-0")["spec"]["nodeName"])


def lose_worker(world: World, on: Pool, node: str) -> None:
    """The worker is drained and its node closed."""
    on.close(node)
    world.say("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.api.delete("Pod", world.namespace, "run-worker-0", gracePeriodSeconds=0)


def laid_out_on(world: World, pods: int) -> Callable[[], bool]:
    def look() -> bool:
        job = world.job("run")
        if job is None or job["metadata"].get("deletionTimestamp"):
            return False
        replicas = job["spec"]["pytorchReplicaSpecs"].values()
        return sum(replica["replicas"] for replica in replicas) == pods

    return look


def is_laid_out_on(world: World, pods: int) -> None:
    eventually(laid_out_on(world, pods), lambda: f"run lies on {pods} pods: {world.brief('run')}", 120)
    world.await_pods("run", pods)


def train(world: World, pods: int, **report: object) -> Object:
    world.say("run", pods, **report)
    eventually(
        lambda: world.status("run").get("phase") == "Training",
        lambda: f"run trains: {world.brief('run')}",
        60,
    )
    return world.status("run")


def test_a_run_is_laid_out_on_what_there_is_and_grows_back(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(2)
    gone = begin(world, nodes)
    lose_worker(world, nodes, gone)
    is_laid_out_on(world, 1)
    status = train(world, 1, iteration=61, checkpointIteration=60, generation=2, resumedFrom=60)
    assert status["plan"]["worldSize"] == 2
    assert status["plan"]["tensorModelParallelSize"] == 2
    assert status["plan"]["globalBatchSize"] == 16
    recovery = status["recovery"]
    assert recovery["elastic"]["count"] == 2
    assert recovery["restartsByKind"]["resize"] == 1
    assert world.condition("run", "Planned")["message"].endswith("= 2 of 4, in 1 pod of 2")
    assert world.environment("run")["MEGATRON_REQUIRE_CHECKPOINT"] == "1"

    nodes.open(gone)
    eventually(
        lambda: world.status("run")["recovery"]["elastic"].get("larger") == 4,
        lambda: f"the free node is seen: {world.brief('run')}",
        90,
    )
    # The pause between two resizes is five minutes.
    past = {"status": {"recovery": {"lastResizeTime": LONG_AGO, "lastRestartTime": LONG_AGO}}}
    world.api.patch("MegatronRecipe", world.namespace, "run", past, "status")
    world.say("run", 1, iteration=70, checkpointIteration=60, generation=2, resumedFrom=60)
    is_laid_out_on(world, 2)
    status = train(world, 2, iteration=71, checkpointIteration=70, generation=3, resumedFrom=70)
    assert "elastic" not in status["recovery"]
    assert status["plan"]["worldSize"] == 4
    assert status["recovery"]["restartsByKind"]["resize"] == 2
    assert status["recovery"]["restartsSinceCheckpoint"] == 0
    reasons = {event["reason"] for event in world.api.list("Event", world.namespace)}
    assert {"Shrunk", "Grown"} <= reasons


def test_a_run_is_resized_once_however_often_the_operator_dies(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(2)
    gone = begin(world, nodes)
    with killed_after_every_write(world) as kills:
        lose_worker(world, nodes, gone)
        is_laid_out_on(world, 1)
    assert kills[0] >= 3
    world.await_pods("run", 1)
    status = train(world, 1, iteration=61, checkpointIteration=60, generation=2, resumedFrom=60)
    recovery = status["recovery"]
    assert recovery["restartsByKind"]["resize"] == 1
    assert recovery["elastic"]["count"] == 2
    assert "outgoingJob" not in recovery

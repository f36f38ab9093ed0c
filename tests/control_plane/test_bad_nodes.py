"""A node on which the run fails again and again is avoided, until there is no other."""

from collections.abc import Callable, Iterator

import pytest

from testkit.api_server import Object
from tests.control_plane.conftest import PLATFORM, Pool
from tests.control_plane.eventually import eventually
from tests.control_plane.operator_process import OPERATOR_NAMESPACE
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World


def fail_worker(world: World, restarts: int) -> None:
    """The worker's container ends; its replacement runs and was counted."""
    old = world.api.get("Pod", world.namespace, "run-worker-0")["metadata"]["uid"]
    world.say("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.end("run-worker-0", 138)

    def replaced() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        counted = (world.status("run").get("recovery") or {}).get("restarts", 0)
        return pod is not None and pod["metadata"]["uid"] != old and counted >= restarts

    eventually(replaced, lambda: f"failure {restarts} is counted: {world.brief('run')}", 90)


def keeps_off(obj: Object) -> list[str]:
    """Nodes that a pod, or a job's pods, are kept off by."""
    specs = obj["spec"].get("pytorchReplicaSpecs")
    spec = specs["Worker"]["template"]["spec"] if specs else obj["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    return [name for e in term["matchExpressions"] if e["operator"] == "NotIn" for name in e["values"]]


def begin(world: World, on: Pool, **recovery: object) -> str:
    """A run on the pool; the node of its worker."""
    world.apply("run", scheduling={"nodeSelector": on.selector}, recovery=recovery)
    world.train("run", 60, checkpoint=50)
    return str(world.api.get("Pod", world.namespace, "run-worker-0")["spec"]["nodeName"])


def worker_on(world: World, node: str) -> Callable[[], bool]:
    def look() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        return pod is not None and pod["spec"].get("nodeName") == node

    return look


def test_a_node_that_ended_the_run_twice_is_avoided_by_its_next_pods(
    world: World, pool: Callable[[int], Pool]
) -> None:
    nodes = pool(3)
    bad = begin(world, nodes)
    taken = {pod["spec"]["nodeName"] for pod in world.api.list("Pod", world.namespace)}
    [spare] = set(nodes.nodes) - taken
    nodes.close(spare)
    fail_worker(world, 1)
    assert world.train("run", 52, generation=2)["recovery"]["nodeFailures"] == {bad: 1}
    nodes.open(spare)
    before = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]
    fail_worker(world, 2)
    eventually(worker_on(world, spare), lambda: f"the worker is on {spare}: {world.brief('run')}", 90)
    status = world.train("run", 53, checkpoint=50, generation=3, resumedFrom=50)
    assert status["recovery"]["nodesAvoided"] == [bad]
    assert status["recovery"]["restarts"] == 2, "that a pod was moved is no further failure"
    after = world.api.get("PyTorchJob", world.namespace, "run")
    assert keeps_off(after) == [bad]
    assert after["metadata"]["uid"] == before["uid"]
    assert after["metadata"]["annotations"] == before["annotations"], "it is the same job still"
    assert "NodeAvoided" in {event["reason"] for event in world.api.list("Event", world.namespace)}


def test_the_avoidance_is_finished_by_whoever_comes_next(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(2)
    bad = begin(world, nodes, nodes={"avoidAfter": 1})
    other = world.api.get("Pod", world.namespace, "run-master-0")["spec"]["nodeName"]
    assert other != bad
    with killed_after_every_write(world) as kills:
        fail_worker(world, 1)
        eventually(
            lambda: keeps_off(world.api.get("PyTorchJob", world.namespace, "run")) == [bad],
            lambda: f"the job avoids {bad}: {world.brief('run')}",
            90,
        )
    assert kills[0] >= 2
    recovery = world.status("run")["recovery"]
    assert (recovery["nodesAvoided"], recovery["restarts"]) == ([bad], 1)
    assert recovery["lastCause"].endswith("(exit code 138)"), (
        "whether its end was seen or only told by Events"
    )


def test_a_bad_node_is_taken_again_when_there_is_no_other(world: World, pool: Callable[[int], Pool]) -> None:
    nodes = pool(2)
    bad = begin(world, nodes, nodes={"avoidAfter": 1})
    fail_worker(world, 1)

    def waits() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        waiting = world.status("run")["recovery"].get("waitingSince")
        return pod is not None and keeps_off(pod) == [bad] and bool(waiting)

    eventually(waits, lambda: f"the worker waits for a place: {world.brief('run')}", 90)
    long_ago = {"status": {"recovery": {"waitingSince": "2026-01-01T00:00:00Z"}}}
    world.api.patch("MegatronRecipe", world.namespace, "run", long_ago, "status")
    pods = eventually(lambda: _bound(world), lambda: f"the worker has a place: {world.brief('run')}", 90)
    assert pods["run-worker-0"] == bad
    recovery = world.status("run")["recovery"]
    assert recovery.get("nodesAvoided", []) == []
    assert recovery.get("nodeFailures", {}) == {}
    assert recovery["restarts"] == 1


def _bound(world: World) -> dict[str, str] | None:
    pods = {p["metadata"]["name"]: p["spec"].get("nodeName") for p in world.api.list("Pod", world.namespace)}
    return pods if len(pods) == 2 and all(pods.values()) else None


@pytest.fixture
def cordoning(install: Callable[[str, Object], str], installed: str) -> Iterator[None]:
    """The owner of the cluster wants bad nodes cordoned."""
    assert installed
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM | {"badNodes": {"cordon": True}}})
    yield
    install(OPERATOR_NAMESPACE, {"platform": PLATFORM})


@pytest.mark.usefixtures("cordoning")
def test_bad_nodes_are_cordoned_where_the_owner_of_the_cluster_says_so(
    world: World, pool: Callable[[int], Pool]
) -> None:
    bad = begin(world, pool(2), nodes={"avoidAfter": 1})
    fail_worker(world, 1)
    eventually(
        lambda: world.api.get("Node", None, bad)["spec"].get("unschedulable"),
        lambda: f"{bad} is cordoned: {world.brief('run')}",
    )

"""Nodes die under a run: KWOK stops playing their kubelet, all else is the real control plane's doing."""

from collections.abc import Callable

from tests.control_plane.eventually import eventually
from tests.control_plane.test_operator_restart import killed_after_every_write
from tests.control_plane.world import World

SILENCE = 120.0
"""Seconds in which a node is found silent (20 s here), its pods are evicted, and 30 s more have passed."""


def test_pods_of_a_dead_node_come_back_on_another(world: World, lose: Callable[[str], None]) -> None:
    """Nobody ends a dead node's pods: without force they stay Terminating and hold up the gang for ever."""
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    worker = world.api.get("Pod", world.namespace, "run-worker-0")
    dead = worker["spec"]["nodeName"]
    master = world.api.get("Pod", world.namespace, "run-master-0")["metadata"]["uid"]
    lose(dead)

    def replaced() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        return pod is not None and pod["metadata"]["uid"] != worker["metadata"]["uid"]

    eventually(replaced, lambda: f"the worker is replaced: {world.brief('run')}", SILENCE)
    assert world.await_pods("run")["run-worker-0"]["spec"]["nodeName"] != dead
    assert world.api.get("Pod", world.namespace, "run-master-0")["metadata"]["uid"] == master
    recovery = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)["recovery"]
    assert recovery["restarts"] == 1
    assert recovery["restartsByKind"]["node"] == 1
    assert (recovery["lastIncident"]["cause"], recovery["lastIncident"]["node"]) == (
        f"{dead}: unreachable",
        dead,
    )


def test_a_job_is_made_anew_although_its_old_pods_died_with_their_node(
    world: World, lose: Callable[[str], None]
) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    pods = world.await_pods("run")
    old = {pod["metadata"]["uid"] for pod in pods.values()}
    dead = pods["run-worker-0"]["spec"]["nodeName"]
    lose(dead)
    eventually(lambda: world.node_ready(dead) == "Unknown", f"{dead} is found silent", SILENCE)
    world.edit("run", training={"trainIters": 300})

    def renewed() -> bool:
        return not old & {pod["metadata"]["uid"] for pod in world.api.list("Pod", world.namespace)}

    eventually(renewed, lambda: f"no old pod is left: {world.brief('run')}", SILENCE)
    assert {pod["spec"]["nodeName"] for pod in world.await_pods("run").values()}.isdisjoint({dead})


def test_a_dead_node_is_dealt_with_once_however_often_the_operator_dies(
    world: World, lose: Callable[[str], None]
) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    worker = world.api.get("Pod", world.namespace, "run-worker-0")
    lose(worker["spec"]["nodeName"])

    def replaced() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        counted = (world.status("run").get("recovery") or {}).get("restarts", 0)
        return pod is not None and pod["metadata"]["uid"] != worker["metadata"]["uid"] and counted > 0

    with killed_after_every_write(world) as kills:
        eventually(replaced, lambda: f"the worker is replaced: {world.brief('run')}", 2 * SILENCE)
    assert kills[0] >= 2
    world.await_pods("run")
    recovery = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)["recovery"]
    assert recovery["restarts"] == 1
    assert recovery["restartsByKind"]["node"] == 1
    assert recovery["nodeFailures"] == {worker["spec"]["nodeName"]: 1}

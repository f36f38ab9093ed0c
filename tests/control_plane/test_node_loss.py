"""Nodes die under a run: KWOK stops playing their kubelet, all else is the real control plane's doing."""

from collections.abc import Callable

from tests.control_plane.api import eventually
from tests.control_plane.world import World

SILENCE = 60.0
"""Seconds in which the node controller finds a node silent (20 s here) and its pods are evicted."""


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
    status = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)
    assert status["recovery"]["restarts"] == 1


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

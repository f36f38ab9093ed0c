"""Many recipes at once, and an API server that goes away."""

import threading
import time

import pytest
from localcluster import Cluster

from tests.control_plane.eventually import eventually
from tests.control_plane.world import World

RECIPES = 50
AWAY = 60.0


def test_fifty_recipes_at_once_become_fifty_jobs_each_made_once(world: World) -> None:
    names = [f"run-{index:02}" for index in range(RECIPES)]
    started = time.monotonic()
    for name in names:
        world.apply(name)
    eventually(lambda: len(world.api.list("PyTorchJob", world.namespace)) == RECIPES, "all jobs are made", 90)
    made = time.monotonic() - started

    def all_run() -> bool:
        recipes = world.api.list("MegatronRecipe", world.namespace)
        running = [
            c
            for r in recipes
            for c in (r.get("status") or {}).get("conditions", [])
            if c["type"] == "Running"
        ]
        return sum(c["status"] == "True" for c in running) == RECIPES

    eventually(all_run, "all recipes say that their pods run", 120)
    print(f"{RECIPES} recipes: jobs after {made:.1f} s, all running after {time.monotonic() - started:.1f} s")
    jobs = [path for method, path in world.gateway.writes if "/pytorchjobs/" in path]
    claims = [path for method, path in world.gateway.writes if "/persistentvolumeclaims/" in path]
    assert len(jobs) == len(claims) == RECIPES
    assert len(world.api.list("Pod", world.namespace)) == 2 * RECIPES


def test_an_api_server_that_was_away_finds_the_operator_at_work(world: World, plane: Cluster) -> None:
    world.apply("before")
    world.train("before", 10)
    plane.component_stop("kube-apiserver")
    try:
        # The run goes on meanwhile.
        world.say("before", iteration=11)
        threading.Event().wait(AWAY)
        assert world.operator.running()
    finally:
        plane.component_start("kube-apiserver")
    eventually(lambda: world.status("before")["progress"]["iteration"] == 11, "the run is followed again", 90)
    world.apply("after")
    # Scheduler, training-operator and KWOK come back in their own time.
    world.await_reason("after", "Running", "PodsRunning", 120)
    assert world.status("before")["recovery"]["restarts"] == 0


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_a_recovery_that_is_cut_through_is_finished_later(
    component: str, world: World, plane: Cluster
) -> None:
    """A pod ends just before: it may be replaced, and be counted, before or after the time without."""
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    world.say("run", phase="rendezvous", iteration=10, checkpointIteration=5)
    world.end("run-worker-0", 138)
    with plane.component_away(component):
        assert world.operator.running()
    world.await_pods("run")
    eventually(lambda: world.status("run")["recovery"]["restarts"] == 1, lambda: world.brief("run"), 120)
    status = world.train("run", 11, checkpoint=5, generation=2, resumedFrom=5)
    assert status["recovery"]["restarts"] == 1


def test_a_training_operator_that_was_away_replaces_the_pod_later(world: World, plane: Cluster) -> None:
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    with plane.component_away("training-operator"):
        world.say("run", phase="rendezvous", iteration=10, checkpointIteration=5)
        world.end("run-worker-0", 138, '{"message": "rank 3 was killed"}')
        world.await_reason("run", "Recovering", "PodsLost")
        assert world.status("run")["recovery"]["restarts"] == 0
    eventually(lambda: world.status("run")["recovery"]["restarts"] == 1, lambda: world.brief("run"), 90)
    world.await_pods("run")
    status = world.train("run", 11, checkpoint=5, generation=2, resumedFrom=5)
    assert status["recovery"]["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"

"""Many recipes at once, and an API server that goes away."""

import threading
import time

from localcluster import Cluster

from tests.control_plane.api import eventually
from tests.control_plane.world import World

RECIPES = 50
AWAY = 30.0


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

"""Many recipes at once, and components of the control plane that are down for a while."""

import time

import pytest
from localcluster import Cluster

from testkit.api_server import Object
from testkit.faults.infrastructure import hold
from testkit.waiting import LONG_DEADLINE, wait_until
from tests.control_plane.world import World

RECIPES = 50
REFUSED = (400, 403, 422)
DOWN_SECONDS = 60.0


def pods_run(recipe: Object) -> bool:
    """Whether the recipe's condition Running is true."""
    conditions = {c["type"]: c for c in (recipe.get("status") or {}).get("conditions", [])}
    return bool("Running" in conditions and conditions["Running"]["status"] == "True")


def test_fifty_recipes_at_once_become_fifty_jobs_each_created_once(world: World) -> None:
    names = [f"run-{index:02}" for index in range(RECIPES)]
    started = time.monotonic()
    for name in names:
        world.apply(name)
    wait_until("all jobs", lambda: len(world.api.list(world.job_kind, world.namespace)) == RECIPES)
    created = time.monotonic() - started

    def all_run() -> bool:
        recipes = world.api.list("MegatronRecipe", world.namespace)
        return sum(pods_run(recipe) for recipe in recipes) == RECIPES

    wait_until("all recipes to report that their pods run", all_run)
    print(
        f"{RECIPES} recipes: jobs after {created:.1f} s, all running after {time.monotonic() - started:.1f} s"
    )
    # Trainer refuses a TrainJob whose runtime it has not seen yet, and the operator sends it again.
    writes = [path for _, path, code in world.gateway.answers if code not in REFUSED]
    jobs = [path for path in writes if f"/{world.backend.manifests.PLURAL}" in path]
    claims = [path for path in writes if "/persistentvolumeclaims" in path]
    assert len(jobs) == len(claims) == RECIPES
    assert len(world.api.list("Pod", world.namespace)) == 2 * RECIPES


def test_the_operator_survives_an_outage_of_the_api_server(world: World, cluster: Cluster) -> None:
    world.apply("before")
    world.train("before", 10)
    cluster.component_stop("kube-apiserver")
    try:
        # The run keeps training meanwhile.
        world.report("before", iteration=11, checkpointIteration=10)
        hold(DOWN_SECONDS)
        assert world.operator.running()
    finally:
        cluster.component_start("kube-apiserver")
    world.wait_for("before", status={"progress": {"iteration": 11}, "checkpoint": {"iteration": 10}})
    world.apply("after")
    # Scheduler, controllers and KWOK need time to reconnect.
    world.wait_for("after", pods=2, conditions={"Running": "PodsRunning"}, seconds=LONG_DEADLINE)
    assert world.wait_for("before", phase="Training").recovery["restarts"] == 0


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_a_recovery_that_is_interrupted_is_completed_later(
    component: str, world: World, cluster: Cluster
) -> None:
    """The pod may be replaced, and counted, before or after the outage. A Job keeps the pod that failed."""
    world.apply("run")
    failed = world.train("run", 10, checkpoint=5).uid_of("worker-0")
    world.report("run", phase="rendezvous", iteration=10, checkpointIteration=5)
    world.terminate("run-worker-0", 138)
    with cluster.component_down(component):
        assert world.operator.running()
    world.wait_for(
        "run",
        status={"recovery": {"restarts": 1}},
        where=lambda state: (
            state.running_pods >= {"master-0", "worker-0"} and state.uid_of("worker-0") != failed
        ),
        seconds=LONG_DEADLINE,
    )
    world.report("run", iteration=11, checkpointIteration=5, generation=2, resumedFrom=5)
    state = world.wait_for("run", phase="Training", status={"progress": {"iteration": 11}})
    assert state.recovery["restarts"] == 1


def test_a_pod_is_replaced_after_an_outage_of_the_controller_that_creates_it(
    world: World, cluster: Cluster
) -> None:
    world.apply("run")
    world.train("run", 10, checkpoint=5)
    with cluster.component_down(world.backend.pod_controller):
        world.report("run", phase="rendezvous", iteration=10, checkpointIteration=5)
        world.terminate("run-worker-0", 138, '{"message": "rank 3 was killed"}')
        state = world.wait_for("run", conditions={"Recovering": "PodsLost"})
        assert state.recovery["restarts"] == 0
    world.wait_for("run", pods=2, status={"recovery": {"restarts": 1}})
    state = world.train("run", 11, checkpoint=5, generation=2, resumedFrom=5)
    assert state.recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"

"""The operator forgets nothing, whenever it dies, and writes nothing that is already so."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.control_plane.eventually import eventually
from tests.control_plane.world import World

PREPARED = {
    "volume": {"size": "1Gi"},
    "prepare": {"source": "/usr/lib/python3.13", "include": "**/*.py", "name": "python"},
}
VARYING = ("lastTransitionTime", "time", "podsAsOf", "gang", "restartBefore", "lastRestartTime")


def scenario(world: World, name: str) -> None:
    """Made, prepared, started, changed, started again."""
    world.apply(name, data=PREPARED)
    _started(world, name, "200")
    world.edit(name, training={"trainIters": 300})
    _started(world, name, "300")


def _started(world: World, name: str, iterations: str) -> None:
    def look() -> bool:
        recipe, condition = (
            world.api.get("MegatronRecipe", world.namespace, name),
            world.condition(name, "Running"),
        )
        generation = recipe["metadata"]["generation"]
        told = (condition.get("reason"), condition.get("observedGeneration")) == ("PodsRunning", generation)
        if world.job(name) is None or not told:
            return False
        arguments = world.arguments(name)
        return arguments[arguments.index("--train-iters") + 1] == iterations

    eventually(look, lambda: f"{name} runs with {iterations} iterations: {world.brief(name)}", 90)
    world.await_pods(name)


def result(world: World, name: str) -> dict[str, Any]:
    """All that a user could see, without what differs between any two runs: times and ids."""
    status = world.status(name)
    for part in (status, *status.get("conditions", []), status.get("recovery") or {}):
        for name_of_part in VARYING:
            part.pop(name_of_part, None)
    status["job"] = status["job"]["name"]
    status.pop("prepared")
    kinds = ("PyTorchJob", "Job", "PersistentVolumeClaim", "Pod", "Service")
    objects = {
        kind: sorted(item["metadata"]["name"] for item in world.api.list(kind, world.namespace))
        for kind in kinds
    }
    objects["Pod"] = [pod for pod in objects["Pod"] if "prepare" not in pod]
    environment = world.environment(name) | {"MEGATRON_RUN_ID": ""}
    parts = {f"status.{part}": value for part, value in status.items()}
    return parts | {"objects": objects, "args": world.arguments(name), "env": environment}


@contextmanager
def killed_after_every_write(world: World) -> Iterator[list[int]]:
    """Every life of the operator ends with its first write; a supervisor, as a kubelet, starts the next."""
    kills = [0]
    over = threading.Event()
    killing = threading.Lock()

    def cut() -> None:
        with killing:
            if not over.is_set():
                kills[0] += 1
                world.operator.kill()

    def supervise() -> None:
        while not over.wait(0.1):
            world.operator.ensure()

    world.gateway.cut = cut
    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        yield kills
    finally:
        world.gateway.cut = None
        # The write that ended the wait may still be on its way to kill: not the operator that stays.
        with killing:
            over.set()
        supervisor.join()
        world.operator.ensure()


def test_a_write_under_way_when_the_killing_ends_leaves_the_operator_alive(world: World) -> None:
    with killed_after_every_write(world) as kills:
        under_way = world.gateway.cut
    assert under_way is not None
    before = kills[0]
    under_way()
    assert kills[0] == before
    assert world.operator.running()


def test_killed_between_any_two_steps_the_result_is_the_same(world: World) -> None:
    """A write is a step. The operator dies after each, before it learns that it got through."""
    scenario(world, "run")
    expected, steps = result(world, "run"), len(world.gateway.writes)
    world.api.delete("MegatronRecipe", world.namespace, "run")
    eventually(lambda: not world.api.list("Pod", world.namespace), "the undisturbed run is gone")
    world.api.delete("PersistentVolumeClaim", world.namespace, "run-checkpoints")
    eventually(lambda: not world.api.list("PersistentVolumeClaim", world.namespace), "its claims are gone")
    with killed_after_every_write(world) as kills:
        scenario(world, "run")
    assert kills[0] >= steps // 2, f"killed {kills[0]} times in a scenario of {steps} writes"
    for part, value in result(world, "run").items():
        assert value == expected[part], part


def test_an_unchanged_recipe_costs_no_write_at_a_restart(world: World) -> None:
    world.apply("trains")
    world.train("trains", 10, checkpoint=5)
    world.apply("runs")
    world.await_pods("runs")
    world.await_reason("runs", "Running", "PodsRunning")
    world.apply("refused", accelerator={"type": "tpu", "count": 4})
    world.await_phase("refused", "Refused")
    world.apply("suspended", suspend=True)
    world.await_phase("suspended", "Suspended")
    world.apply("done")
    world.await_pods("done")
    for pod in ("done-worker-0", "done-master-0"):
        world.end(pod, 0, '{"reason": "Completed", "iteration": 200}', "Completed")
    world.await_phase("done", "Succeeded")
    world.operator.stop()
    world.gateway.reset()
    world.operator.start()
    # A new recipe is looked at after all that were there before.
    world.apply("marker", accelerator={"type": "tpu", "count": 4})
    world.await_phase("marker", "Refused")
    world.say("trains", iteration=11, checkpointIteration=5)
    eventually(lambda: world.status("trains")["progress"]["iteration"] == 11, "pods are asked again")
    needed = {
        ("PATCH", "megatronrecipes/marker/status"),
        ("PATCH", "megatronrecipes/trains/status"),
        ("POST", "events"),
    }
    inside = f"/namespaces/{world.namespace}/"
    writes = {(method, path.split(inside)[1]) for method, path in world.gateway.writes if inside in path}
    assert writes == needed


def test_a_restart_that_was_decided_is_carried_out_by_the_next_operator(world: World) -> None:
    """Killed between writing down a gang restart and the first deletion, the pods go all the same, once."""
    world.apply("run", recovery={"hangTimeout": "5s"})
    world.train("run", 60, checkpoint=50)
    before = {pod["metadata"]["uid"] for pod in world.await_pods("run").values()}

    def kill_once_it_is_written() -> None:
        if (world.status("run").get("recovery") or {}).get("restartBefore"):
            world.operator.kill()

    world.gateway.cut = kill_once_it_is_written
    eventually(lambda: not world.operator.running(), "the operator died after its decision")
    world.gateway.cut = None
    assert {pod["metadata"]["uid"] for pod in world.await_pods("run").values()} == before
    world.operator.start()

    def replaced() -> bool:
        pods = world.api.list("Pod", world.namespace)
        return len(pods) == 2 and not before & {pod["metadata"]["uid"] for pod in pods}

    eventually(replaced, "both pods are new")
    status = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)
    assert status["recovery"]["restarts"] == 1
    assert status["recovery"]["lostIterations"] == 10

"""The operator forgets nothing, whenever it dies, and writes nothing that is already so."""

import json
from typing import Any

from tests.control_plane.api import eventually
from tests.control_plane.world import World

PREPARED = {
    "volume": {"size": "1Gi"},
    "prepare": {"source": "/usr/lib/python3.13", "include": "**/*.py", "name": "python"},
}
TIMES = ("lastTransitionTime", "time", "podsAsOf", "restartBefore", "lastRestartTime")


def scenario(world: World, name: str) -> None:
    """Made, prepared, started, changed, started again."""
    world.apply(name, data=PREPARED)
    _started(world, name, "200")
    world.edit(name, training={"trainIters": 300})
    _started(world, name, "300")


def _started(world: World, name: str, iterations: str) -> None:
    def look() -> bool:
        job = world.job(name)
        if job is None or world.condition(name, "Running").get("reason") != "PodsRunning":
            return False
        arguments = world.arguments(name)
        return arguments[arguments.index("--train-iters") + 1] == iterations

    eventually(look, f"{name} runs with {iterations} iterations; its status: {world.status(name)}", 60)
    world.await_pods(name)


def result(world: World, name: str) -> dict[str, Any]:
    """All that a user could see, without what differs between any two runs: times and ids."""
    status = world.status(name)
    for part in (status, *status.get("conditions", []), status.get("recovery") or {}):
        for time in TIMES:
            part.pop(time, None)
    status["job"].pop("hash")
    status.pop("prepared")
    kinds = ("PyTorchJob", "Job", "PersistentVolumeClaim", "Pod", "Service")
    objects = {
        kind: sorted(item["metadata"]["name"] for item in world.api.list(kind, world.namespace)) for kind in kinds
    }
    objects["Pod"] = [pod for pod in objects["Pod"] if "prepare" not in pod]
    environment = world.environment(name) | {"MEGATRON_RUN_ID": ""}
    return {"status": status, "objects": objects, "args": world.arguments(name), "env": environment}


def test_killed_between_any_two_steps_the_result_is_the_same(world: World) -> None:
    """A write is a step: the operator is killed after each one, before it learns that it got through."""
    scenario(world, "undisturbed")
    expected = json.dumps(result(world, "undisturbed")).replace("undisturbed", "NAME")
    writes = [write for write in world.gateway.writes if "undisturbed" in write[1]]
    assert 8 <= len(writes) <= 40, writes
    world.api.delete("MegatronRecipe", world.namespace, "undisturbed")
    eventually(lambda: not world.api.list("Pod", world.namespace), "the first run is gone")
    for claim in world.api.list("PersistentVolumeClaim", world.namespace):
        world.api.delete("PersistentVolumeClaim", world.namespace, claim["metadata"]["name"])
    killed = 0
    world.gateway.reset()
    world.gateway.cut = world.operator.kill
    kill_every(world, len(writes))
    scenario(world, "disturbed")
    killed = world.gateway.cuts
    world.gateway.reset()
    assert killed >= len(writes) // 2, f"killed {killed} times"
    got = json.loads(json.dumps(result(world, "disturbed")).replace("disturbed", "NAME"))
    got["objects"] = {
        kind: [name for name in names if "un" not in name] for kind, names in got["objects"].items()
    }
    assert got == json.loads(expected)

"""The operator forgets nothing whenever it is killed, and never repeats a write."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from localcluster import Cluster

from testkit.run_state import RunState
from testkit.waiting import DEADLINE, wait_until
from tests.control_plane.world import World

PREPARED = {
    "volume": {"size": "1Gi"},
    "prepare": {"source": "/usr/lib/python3.13", "include": "**/*.py", "name": "python"},
}
VARYING = ("lastTransitionTime", "time", "podsAsOf", "gang", "restartBefore", "lastRestartTime", "placement")


def scenario(world: World, name: str) -> None:
    """Create, prepare, start, change, start again."""
    # Pods that never answered would be reported as unreachable, sooner or later.
    world.report(name, phase="rendezvous", generation=None)
    world.apply(name, data=PREPARED)
    _wait_for_start(world, name, "200")
    world.edit(name, training={"trainIters": 300})
    _wait_for_start(world, name, "300")


def _wait_for_start(world: World, name: str, iterations: str) -> None:
    def has_iterations(state: RunState) -> bool:
        return state.arguments[state.arguments.index("--train-iters") + 1] == iterations

    world.wait_for(
        name,
        pods=2,
        job=True,
        observed=True,
        conditions={"Running": "PodsRunning"},
        where=has_iterations,
    )


def _has_answered(state: RunState) -> bool:
    return "phase rendezvous" in state.conditions["Running"]["message"]


def settle(world: World) -> None:
    """Let another operator reconcile every recipe: the last one may still have had a write to make."""
    world.operator.stop()
    world.operator.start()
    # A new recipe is reconciled after all existing ones.
    world.apply("marker", accelerator={"type": "tpu", "count": 4})
    world.wait_for("marker", phase="Refused")
    world.api.delete("MegatronRecipe", world.namespace, "marker")


def result(world: World, name: str) -> dict[str, Any]:
    """All that a user can see, without times and ids."""
    state = world.wait_for(
        name,
        job=True,
        observed=True,
        conditions={"Running": "PodsRunning"},
        where=_has_answered,
    )
    status = state.status
    for part in (status, *status.get("conditions", []), status.get("recovery") or {}):
        for varying in VARYING:
            part.pop(varying, None)
    status["job"] = status["job"]["name"]
    status.pop("prepared")
    # Its seconds; that they add up is tested on the simulated cluster.
    status.pop("ledger", None)
    kinds = {*world.backend.kinds, "Job", "PersistentVolumeClaim", "Service"}
    objects = {
        kind: sorted(item["metadata"]["name"] for item in world.api.list(kind, world.namespace))
        for kind in kinds
    }
    objects["Pod"] = sorted(place for place in world.places() if "prepare" not in place)
    environment = state.environment | {"MEGATRON_RUN_ID": ""}
    parts = {f"status.{part}": value for part, value in status.items()}
    return parts | {"objects": objects, "args": state.arguments, "env": environment}


@contextmanager
def killed_after_every_write(world: World, once: Callable[[], bool] = lambda: True) -> Iterator[list[int]]:
    """Every life of the operator ends after its first write; a supervisor starts the next one.

    Args:
        world: The world whose operator is killed.
        once: Asked after each write; the killing begins when it is true.

    Yields a list of one number: how often it was killed.
    """
    kills = [0]
    over = threading.Event()
    killing = threading.Lock()

    def kill() -> None:
        with killing:
            if not over.is_set() and (kills[0] or once()):
                kills[0] += 1
                world.operator.kill()

    def supervise() -> None:
        while not over.wait(0.1):
            world.operator.ensure()

    world.gateway.after_write = kill
    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        yield kills
    finally:
        world.gateway.after_write = None
        # A write that is still under way must not kill the operator that stays.
        with killing:
            over.set()
        supervisor.join()
        world.operator.ensure()


def test_a_write_under_way_when_the_killing_ends_leaves_the_operator_alive(world: World) -> None:
    with killed_after_every_write(world) as kills:
        under_way = world.gateway.after_write
    assert under_way is not None
    before = kills[0]
    under_way()
    assert kills[0] == before
    assert world.operator.running()


def test_killed_between_any_two_steps_the_result_is_the_same(world: World) -> None:
    """A write is a step. The operator is killed after each one, before it receives the answer."""
    scenario(world, "run")
    steps = len(world.gateway.writes)
    settle(world)
    expected = result(world, "run")
    world.api.delete("MegatronRecipe", world.namespace, "run")
    world.wait_for_only("Pod")
    world.api.delete("PersistentVolumeClaim", world.namespace, "run-checkpoints")
    world.wait_for_only("PersistentVolumeClaim")
    with killed_after_every_write(world) as kills:
        scenario(world, "run")
    assert kills[0] >= steps // 2, f"killed {kills[0]} times in a scenario of {steps} writes"

    def different() -> dict[str, Any]:
        found = result(world, "run")
        return {
            part: (found[part], expected.get(part)) for part in found if found[part] != expected.get(part)
        }

    # The operator that stays may still have a write to make.
    wait_until(lambda: f"the same result; differences: {different()}", lambda: not different())


def test_an_unchanged_recipe_costs_no_write_at_a_restart(world: World) -> None:
    world.apply("trains")
    world.train("trains", 10, checkpoint=5)
    world.report("runs", phase="rendezvous", generation=None)
    world.apply("runs")
    world.wait_for("runs", pods=2, conditions={"Running": "PodsRunning"}, where=_has_answered)
    world.apply("refused", accelerator={"type": "tpu", "count": 4})
    world.wait_for("refused", phase="Refused")
    world.apply("suspended", suspend=True)
    world.wait_for("suspended", phase="Suspended")
    world.apply("done")
    world.wait_for("done", pods=2)
    for place in ("done-worker-0", "done-master-0"):
        world.terminate(place, 0, '{"reason": "Completed", "iteration": 200}', "Completed")
    world.wait_for("done", phase="Succeeded")
    world.operator.stop()
    world.gateway.reset()
    world.operator.start()
    # A new recipe is reconciled after all existing ones.
    world.apply("marker", accelerator={"type": "tpu", "count": 4})
    world.wait_for("marker", phase="Refused")
    world.report("trains", iteration=11, checkpointIteration=5)
    world.wait_for("trains", status={"progress": {"iteration": 11}})
    inside = f"/namespaces/{world.namespace}/"
    needed = {
        ("PATCH", "megatronrecipes/marker/status"),
        ("PATCH", "megatronrecipes/trains/status"),
        ("POST", "events"),
    }

    def writes() -> set[tuple[str, str]]:
        return {(method, path.split(inside)[1]) for method, path in world.gateway.writes if inside in path}

    # The Event is created after the status is written.
    wait_until(lambda: f"the writes {needed}, found {writes()}", lambda: needed <= writes())
    assert writes() == needed


def test_a_restart_that_was_decided_is_carried_out_by_the_next_operator(world: World) -> None:
    """Killed between the record of a gang restart and the first deletion: the pods are still deleted,
    once."""
    world.apply("run", recovery={"hangTimeout": "5s"})
    before = world.train("run", 60, checkpoint=50).pod_uids

    def kill_once_it_is_recorded() -> None:
        recipe = world.api.get("MegatronRecipe", world.namespace, "run")
        if (recipe.get("status", {}).get("recovery") or {}).get("restartBefore"):
            world.operator.kill()

    world.gateway.after_write = kill_once_it_is_recorded
    wait_until("the operator to be killed after its decision", lambda: not world.operator.running())
    world.gateway.after_write = None
    assert world.wait_for("run", pods=2).pod_uids == before
    world.operator.start()
    world.wait_for("run", pods=2, without=before)
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, recovery={"lostIterations": 10}
    ).recovery
    assert recovery["restarts"] == 1


def next_operator_counts(world: World, code: int, message: str = "") -> dict[str, Any]:
    """What an operator records of a pod that ended, when the one that deleted it was killed right after."""
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)

    def kill_once_it_is_deleted() -> None:
        # The pod, or the Job that it goes with.
        if any(method == "DELETE" and "/run-worker-0" in path for method, path in world.gateway.writes):
            world.operator.kill()

    world.gateway.after_write = kill_once_it_is_deleted
    world.terminate("run-worker-0", code, message)
    wait_until("the operator to be killed after the deletion", lambda: not world.operator.running())
    world.gateway.after_write = None
    world.operator.start()
    world.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, recovery={"restarts": 1}
    ).recovery
    assert "endedPods" not in recovery
    incident: dict[str, Any] = recovery["lastIncident"]
    assert incident["node"] == before.node_of("worker-0")
    return incident


@pytest.mark.job_backends("jobset", "trainjob", reason="the training-operator deletes failed pods itself")
def test_the_end_of_a_failed_pod_that_was_deleted_is_known_to_the_next_operator(world: World) -> None:
    words = {"reason": "WorkerDied", "message": "rank 3 was killed", "rank": 3}
    incident = next_operator_counts(world, 138, json.dumps(words))
    assert incident["cause"] == "worker-0: rank 3 was killed (exit code 138)"
    assert (incident["rank"], incident["exitCode"]) == (3, 138)


def test_the_early_exit_of_a_pod_that_was_deleted_is_known_to_the_next_operator(world: World) -> None:
    """The operator itself deletes it, whatever the kind of job."""
    incident = next_operator_counts(world, 0)
    assert incident["cause"] == "worker-0: ended with exit code 0 before the last iteration"
    assert incident["exitCode"] == 0


@pytest.mark.job_backends("jobset", "trainjob", reason="a PyTorchJob's pods have no Jobs of their own")
def test_a_pod_that_is_deleted_with_its_job_costs_no_restart_of_its_own(
    world: World, cluster: Cluster
) -> None:
    """The Job replaces the failed pod before its deletion arrives, and no controller ends the new one yet."""
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    world.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.gateway.held_path = "/jobs/run-worker-0"
    world.terminate("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    assert world.gateway.holding.wait(DEADLINE)
    world.operator.kill()
    failed = before.uid_of("worker-0")
    own = world.wait_for(
        "run",
        where=lambda state: (
            state.running_pods >= {"master-0", "worker-0"} and state.uid_of("worker-0") != failed
        ),
    )
    with cluster.component_down("kube-controller-manager"):
        world.gateway.held_path = None
        wait_until("the Job's deletion", lambda: job_is_deleting(world, "run-worker-0"))
        settle(world)
        assert world.wait_for("run").recovery["restarts"] == 0
    world.wait_for("run", pods=2, without=[failed, own.uid_of("worker-0")])
    recovery = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50).recovery
    assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 1)
    assert recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"


def job_is_deleting(world: World, name: str) -> bool:
    return "deletionTimestamp" in world.api.get("Job", world.namespace, name)["metadata"]

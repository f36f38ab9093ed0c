"""Runs that have ended: what of them is kept, and that no second of their time is missing."""

import json
import time
from typing import Any

import pytest
from megatron_operator.api.times import seconds
from megatron_operator.lifecycle.run_account import run_account

from testkit.run_state import RunState
from testkit.waiting import wait_until
from tests.control_plane.test_flows import PREPARED
from tests.control_plane.world import World

TTL = 3
RESOLUTION = 1.0
"""Seconds: Kubernetes' times of creation and completion, and the marks of a ledger, are whole seconds."""


def lose_a_pod(world: World) -> None:
    """A run that trains loses its worker, and resumes from its checkpoint."""
    world.train("run", 60, checkpoint=50)
    world.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.terminate("run-worker-0", 138, json.dumps({"reason": "WorkerDied", "message": "rank 3 was killed"}))
    world.wait_for("run", pods=2, conditions={"Recovering": "PodsReplaced"})
    world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, conditions={"Recovering": "Recovered"}
    )


def complete(world: World) -> None:
    """All pods end after the last iteration, that of rank 0 last."""
    message = json.dumps({"reason": "Completed", "iteration": 200, "checkpointIteration": 200})
    for place in ("run-worker-0", "run-master-0"):
        world.terminate(place, 0, message, "Completed")


def note_deletions_of_the_job(world: World) -> list[float]:
    """Seconds since the epoch at which the operator has deleted the job, from now on."""
    found: list[float] = []

    of_the_job = f"/{world.backend.manifests.PLURAL}/run"

    def note() -> None:
        deleted = [
            path for method, path in world.gateway.writes if method == "DELETE" and path.endswith(of_the_job)
        ]
        found.extend([time.time()] * (len(deleted) - len(found)))

    world.gateway.after_write = note
    return found


def time_of(state: RunState, condition: str) -> float:
    return seconds(state.conditions[condition]["lastTransitionTime"]) or 0.0


def test_an_expired_job_and_its_pods_are_deleted_and_the_recipe_keeps_status_and_history(
    world: World,
) -> None:
    world.apply("run", ttlSecondsAfterFinished=TTL)
    lose_a_pod(world)
    deletions = note_deletions_of_the_job(world)
    complete(world)
    state = world.wait_for("run", phase="Succeeded", job=False, pods=0)
    assert len(deletions) == 1
    assert deletions[0] >= time_of(state, "Succeeded") + TTL
    world.wait_for_only("Pod")
    for kind in world.backend.kinds:
        world.wait_for_only(kind)
    world.wait_for_only("PersistentVolumeClaim", "run-checkpoints")
    status: dict[str, Any] = state.status
    assert status["progress"]["display"] == "200/200"
    assert status["checkpoint"]["iteration"] == 200
    (incident,) = status["recovery"]["history"]
    assert incident["cause"] == "worker-0: rank 3 was killed (exit code 138)"
    world.edit("run", ttlSecondsAfterFinished=TTL + 1)
    after = world.wait_for("run", phase="Succeeded", observed=True, job=False, pods=0)
    kept = ("progress", "checkpoint", "recovery", "ledger", "plan", "job")
    assert {key: after.status.get(key) for key in kept} == {key: status.get(key) for key in kept}


def test_the_job_that_prepared_the_data_expires_too_and_an_edit_does_not_repeat_it(world: World) -> None:
    world.apply("run", data=PREPARED, ttlSecondsAfterFinished=TTL)
    world.train("run", 60, checkpoint=50)
    assert world.api.get("Job", world.namespace, "run-prepare")["status"]["succeeded"] == 1
    complete(world)
    ended = world.wait_for("run", phase="Succeeded", job=False, pods=0)
    world.wait_for_only("Job")
    world.wait_for_only("Pod")
    before = len(world.gateway.writes)
    world.edit("run", env={"NCCL_DEBUG": "INFO"})
    state = world.train("run", 201, checkpoint=200, trainIters=400)
    assert state.status["prepared"] == ended.status["prepared"]
    created = [path for method, path in world.gateway.writes[before:] if method == "POST"]
    assert not [path for path in created if path.endswith("/jobs")]


def test_every_second_from_the_creation_to_the_end_of_the_job_is_in_the_ledger(world: World) -> None:
    """The run ends when its job is complete; that the status reports it later is none of its time."""
    world.apply("run")
    lose_a_pod(world)
    world.edit("run", suspend=True)
    suspended = world.wait_for("run", phase="Suspended", pods=0, job=False, observed=True)
    # A state of less than a second may have no mark.
    begun = time_of(suspended, "Running")
    wait_until("two seconds of the suspension", lambda: time.time() >= begun + 2)
    world.edit("run", suspend=False)
    world.train("run", 61, checkpoint=50, generation=3, resumedFrom=50)
    complete(world)
    state = world.wait_for("run", phase="Succeeded", job=True)
    assert state.job is not None
    completed = seconds(state.job["status"].get("completionTime")) or time_of(state, "Succeeded")
    wall = completed - (seconds(state.recipe["metadata"]["creationTimestamp"]) or 0.0)
    found = run_account(state.recipe, time.time() + 3600, None)
    assert found is not None
    by_category = {name: ticks / 100 for name, ticks in found.account.ticks.items()}
    assert sum(by_category.values()) == pytest.approx(wall, rel=1e-3, abs=RESOLUTION), by_category
    assert by_category["idle"] >= 1

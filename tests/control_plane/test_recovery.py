"""Pods fail, hang and recover: what is counted and reported, when the gang restarts, when the run fails."""

import json
import time
from typing import Any

from testkit.run_state import RunState
from tests.control_plane.world import World


def test_a_pod_that_dies_is_replaced_counted_and_reported_with_its_message(world: World) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    world.report("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    words = {"reason": "WorkerDied", "message": "rank 3 was killed"}
    world.terminate("run-worker-0", 138, json.dumps(words))
    state = world.wait_for("run", pods=2, conditions={"Recovering": "PodsReplaced"})
    assert state.uid_of("master-0") == before.uid_of("master-0"), "only the pod that died is replaced"
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, conditions={"Recovering": "Recovered"}
    ).recovery
    assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 1)
    assert recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"
    assert recovery["lostIterations"] == 10


def test_a_new_checkpoint_restores_the_restart_budget(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    world.terminate("run-worker-0", 138)
    world.wait_for("run", status={"recovery": {"restarts": 1}})
    recovery = world.train(
        "run", 110, checkpoint=100, generation=2, resumedFrom=50, recovery={"restartsSinceCheckpoint": 0}
    ).recovery
    assert recovery["restarts"] == 1


def test_out_of_memory_is_reported_as_such(world: World) -> None:
    world.apply("run")
    world.train("run", 60)
    world.terminate("run-master-0", 137, reason="OOMKilled")
    world.wait_for("run", status={"recovery": {"lastCause": "master-0: out of memory"}})


def test_a_worker_that_exits_early_with_code_0_is_replaced(world: World) -> None:
    """Its controller treats it as completed."""
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    world.terminate("run-worker-0", 0)
    world.wait_for("run", pods=2, without=[before.uid_of("worker-0")])
    recovery = world.train(
        "run", 61, checkpoint=50, generation=2, resumedFrom=50, recovery={"restartsSinceCheckpoint": 1}
    ).recovery
    assert recovery["lastCause"] == "worker-0: ended with exit code 0 before the last iteration"


def test_a_master_that_exits_early_with_code_0_is_no_success(world: World) -> None:
    """Its controller treats the whole job as completed; the operator re-creates the job."""
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    world.terminate("run-master-0", 0)
    world.wait_for("run", pods=2, without=before.pod_uids)
    recovery = world.train(
        "run",
        61,
        checkpoint=50,
        generation=2,
        resumedFrom=50,
        recovery={"restartsSinceCheckpoint": 1},
        conditions={"Succeeded": None},
    ).recovery
    assert recovery["lastCause"] == "master-0: ended with exit code 0 before the last iteration"


def test_a_gang_that_hangs_is_restarted_as_a_whole(world: World) -> None:
    world.apply("run", recovery={"hangTimeout": "5s"})
    before = world.train("run", 60, checkpoint=50)
    world.wait_for("run", pods=2, without=before.pod_uids)
    recovery = world.train(
        "run", 52, checkpoint=50, generation=2, resumedFrom=50, recovery={"lostIterations": 10}
    ).recovery
    assert recovery["restarts"] == 1
    assert recovery["lastCause"].startswith("no new iteration for ")
    assert "after iteration 60; hangTimeout 5s allows 10 s" in recovery["lastCause"]


def test_pods_that_do_not_complete_the_rendezvous_are_restarted(world: World) -> None:
    world.apply("run", recovery={"rendezvousTimeout": 3})
    before = world.wait_for("run", pods=2)
    world.report("run", phase="rendezvous", generation=None)
    state = world.wait_for(
        "run", pods=2, without=before.pod_uids, where=lambda state: "lastCause" in state.recovery
    )
    assert (
        state.recovery["lastCause"] == "pods did not complete the rendezvous within 3 s (rendezvousTimeout)"
    )


def test_when_the_budget_is_spent_the_run_fails_and_releases_its_accelerators(world: World) -> None:
    world.apply("run", recovery={"maxRestarts": 0})
    world.train("run", 60, checkpoint=50)
    world.terminate("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    state = world.wait_for("run", phase="Failed", pods=0)
    assert state.conditions["Failed"]["message"] == (
        "1 restarts brought no new checkpoint and recovery.maxRestarts is 0; "
        "first cause: worker-0: rank 3 was killed (exit code 138)"
    )
    world.edit("run", recovery={"maxRestarts": 5})
    world.train("run", 61, checkpoint=50, generation=2, conditions={"Failed": None})


def test_pods_that_never_answered_are_not_restarted(world: World) -> None:
    """A network policy between operator and pods must not cost restarts."""
    world.apply("run", recovery={"hangTimeout": "1s", "rendezvousTimeout": 1})
    before = world.wait_for("run", pods=2, conditions={"Running": "PodsRunning"})
    # Meanwhile another recipe goes through its whole start.
    world.apply("other")
    world.wait_for("other", pods=2, conditions={"Running": "PodsRunning"})
    state = world.wait_for("run", pods=2, conditions={"Running": "PodsRunning"})
    assert state.pod_uids == before.pod_uids
    assert state.recovery["restarts"] == 0


def resume_without_cost(world: World) -> dict[str, Any]:
    """Train on from what was saved at iteration 60: a restart that costs no budget. Returns its status."""
    free = {"restarts": 1, "restartsSinceCheckpoint": 0}
    return world.train("run", 61, checkpoint=60, generation=2, resumedFrom=60, recovery=free).recovery


def test_a_drained_pod_moves_and_costs_no_budget(world: World) -> None:
    world.apply("run")
    before = world.train("run", 60, checkpoint=50)
    pod = world.pod_name("run-worker-0")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": world.namespace},
    }
    world.api.request("POST", world.api.path("Pod", world.namespace, pod) + "/eviction", eviction)
    world.wait_for("run", without=[before.uid_of("worker-0")], conditions={"Recovering": "PodsReplaced"})
    recovery = resume_without_cost(world)
    assert "nodeFailures" not in recovery


def test_a_pod_that_saved_on_sigterm_costs_no_budget(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    words = {"reason": "Terminated", "message": "SIGTERM: saved", "checkpointIteration": 60}
    world.terminate("run-worker-0", 143, json.dumps(words))
    world.wait_for("run", pods=2, conditions={"Recovering": "PodsReplaced"})
    recovery = resume_without_cost(world)
    assert recovery["lastCause"] == "worker-0: SIGTERM: saved (exit code 143)"


def test_a_rank_restarted_by_its_pod_is_reported_from_the_pods_report(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    now = time.time()
    incident = {
        "generation": 2,
        "kind": "rank",
        "nodeRank": 1,
        "rank": 3,
        "cause": "rank 3 was killed by SIGKILL",
        "iteration": 60,
        "resumedFrom": 50,
        "lastStepAt": now - 2,
        "detectedAt": now - 1,
        "metAt": now - 0.5,
        "firstStepAt": now,
        "caughtUpAt": None,
    }
    state = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, incidents=[incident], usefulSeconds=5.1,
        firstStartedAt=now - 60, recovery={"restartsByKind": {"rank": 1}},
    )  # fmt: skip
    reported = state.recovery["lastIncident"]
    assert (reported["kind"], reported["pod"], reported["rank"]) == ("rank", "worker-0", 3)
    assert reported["node"] == state.node_of("worker-0")
    assert state.recovery["lostIterations"] == 10
    assert 0 < state.recovery["goodput"] < 1
    world.wait_for_events("RankRestarted", contains="rank 3 was killed")


def test_an_incident_without_times_follows_one_with_times(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    now = time.time()
    incident = {"generation": 2, "kind": "rank", "cause": "rank 3 was killed by SIGKILL", "iteration": 60}
    incident |= {"resumedFrom": 50, "lastStepAt": now - 2, "detectedAt": now - 1, "metAt": now - 0.5}
    incident |= {"firstStepAt": now}

    def has_times(state: RunState) -> bool:
        return bool(state.recovery.get("lastIncident", {}).get("seconds"))

    world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50, incidents=[incident])
    world.wait_for("run", where=has_times)
    world.terminate("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    state = world.wait_for("run", conditions={"Recovering": "PodsReplaced"})
    last = state.recovery["lastIncident"]
    assert (last["number"], last["kind"], "seconds" in last) == (2, "pod", False)

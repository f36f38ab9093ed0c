"""Pods end, hang and come back: what is counted, what is told, when the gang starts anew, when it is over."""

import json
import time

from tests.control_plane.eventually import eventually
from tests.control_plane.world import World


def uids(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.api.list("Pod", world.namespace)}


def test_a_pod_that_dies_is_replaced_counted_and_told_with_its_words(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    master = world.api.get("Pod", world.namespace, "run-master-0")["metadata"]["uid"]
    world.say("run", phase="rendezvous", iteration=60, checkpointIteration=50)
    world.end("run-worker-0", 138, json.dumps({"reason": "WorkerDied", "message": "rank 3 was killed"}))
    world.await_reason("run", "Recovering", "PodsReplaced")
    world.await_pods("run")
    assert master in uids(world), "only the pod that died is replaced"
    status = world.train("run", 51, checkpoint=50, generation=2, resumedFrom=50)
    recovery = status["recovery"]
    assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 1)
    assert recovery["lastCause"] == "worker-0: rank 3 was killed (exit code 138)"
    assert recovery["lostIterations"] == 10
    assert world.condition("run", "Recovering")["reason"] == "Recovered"


def test_a_new_checkpoint_gives_the_budget_back(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    world.end("run-worker-0", 138)
    eventually(lambda: world.status("run")["recovery"]["restarts"] == 1, "the restart is counted")
    world.train("run", 110, checkpoint=100, generation=2, resumedFrom=50)
    eventually(lambda: world.status("run")["recovery"]["restartsSinceCheckpoint"] == 0, "the budget is back")
    assert world.status("run")["recovery"]["restarts"] == 1


def test_out_of_memory_is_told_as_such(world: World) -> None:
    world.apply("run")
    world.train("run", 60)
    world.end("run-master-0", 137, reason="OOMKilled")
    eventually(
        lambda: world.status("run")["recovery"].get("lastCause") == "master-0: out of memory", "the cause"
    )


def test_a_worker_that_ends_with_exit_code_0_too_early_is_replaced(world: World) -> None:
    """The training-operator takes it for done."""
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    before = uids(world)
    world.end("run-worker-0", 0)
    eventually(lambda: len(uids(world)) == 2 and uids(world) - before, "the worker is replaced")
    status = world.train("run", 61, checkpoint=50, generation=2, resumedFrom=50)
    assert status["recovery"]["lastCause"] == "worker-0: ended with exit code 0 before the last iteration"
    assert status["recovery"]["restartsSinceCheckpoint"] == 1


def test_a_master_that_ends_with_exit_code_0_too_early_is_no_success(world: World) -> None:
    """The training-operator takes the whole job for done; the job is made anew."""
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    before = uids(world)
    world.end("run-master-0", 0)
    eventually(lambda: len(uids(world)) == 2 and not before & uids(world), "both pods are new")
    status = world.train("run", 61, checkpoint=50, generation=2, resumedFrom=50)
    assert status["recovery"]["lastCause"] == "master-0: ended with exit code 0 before the last iteration"
    assert status["recovery"]["restartsSinceCheckpoint"] == 1
    assert world.condition("run", "Succeeded") == {}


def test_a_gang_that_hangs_is_started_anew_as_a_whole(world: World) -> None:
    world.apply("run", recovery={"hangTimeout": "5s"})
    world.train("run", 60, checkpoint=50)
    before = uids(world)
    eventually(lambda: len(uids(world)) == 2 and not before & uids(world), "both pods are new")
    status = world.train("run", 52, checkpoint=50, generation=2, resumedFrom=50)
    assert status["recovery"]["restarts"] == 1
    assert status["recovery"]["lastCause"].startswith("no new iteration for ")
    assert "after iteration 60 (hangTimeout 5 s)" in status["recovery"]["lastCause"]
    assert status["recovery"]["lostIterations"] == 10


def test_pods_that_do_not_come_together_are_started_anew(world: World) -> None:
    world.apply("run", recovery={"rendezvousTimeout": 3})
    world.await_pods("run")
    before = uids(world)
    world.say("run", phase="rendezvous", generation=None)
    eventually(lambda: len(uids(world)) == 2 and not before & uids(world), "both pods are new")
    assert world.status("run")["recovery"]["lastCause"] == (
        "pods did not come together within 3 s (rendezvousTimeout)"
    )


def test_when_the_budget_is_spent_the_run_fails_and_holds_no_accelerator(world: World) -> None:
    world.apply("run", recovery={"maxRestarts": 0})
    world.train("run", 60, checkpoint=50)
    world.end("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    world.await_phase("run", "Failed")
    message = world.condition("run", "Failed")["message"]
    assert message == (
        "1 restarts brought no new checkpoint and recovery.maxRestarts is 0; "
        "first cause: worker-0: rank 3 was killed (exit code 138)"
    )
    eventually(lambda: not world.api.list("Pod", world.namespace), "no pod is left")
    world.edit("run", recovery={"maxRestarts": 5})
    world.train("run", 61, checkpoint=50, generation=2)
    assert world.condition("run", "Failed") == {}


def test_pods_that_never_answered_are_not_blamed(world: World) -> None:
    """A network policy between operator and pods must not cost restarts."""
    world.apply("run", recovery={"hangTimeout": "1s", "rendezvousTimeout": 1})
    world.await_pods("run")
    world.await_reason("run", "Running", "PodsRunning")
    before = uids(world)
    # Another recipe's whole life passes.
    world.apply("other")
    world.await_pods("other")
    world.await_reason("other", "Running", "PodsRunning")
    assert before <= uids(world)
    assert world.status("run")["recovery"]["restarts"] == 0


def test_a_drained_pod_moves_and_costs_no_budget(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    before = world.api.get("Pod", world.namespace, "run-worker-0")["metadata"]["uid"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "run-worker-0", "namespace": world.namespace},
    }
    world.api.request("POST", world.api.path("Pod", world.namespace, "run-worker-0") + "/eviction", eviction)

    def replaced() -> bool:
        pod = world.api.find("Pod", world.namespace, "run-worker-0")
        return pod is not None and pod["metadata"]["uid"] != before

    eventually(replaced, "the pod is replaced")
    world.await_reason("run", "Recovering", "PodsReplaced")
    status = world.train("run", 61, checkpoint=60, generation=2, resumedFrom=60)
    recovery = status["recovery"]
    assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 0)
    assert "nodeFailures" not in recovery


def test_a_pod_told_to_end_that_saved_first_costs_no_budget(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    words = {"reason": "Terminated", "message": "SIGTERM: saved", "checkpointIteration": 60}
    world.end("run-worker-0", 143, json.dumps(words))
    world.await_reason("run", "Recovering", "PodsReplaced")
    world.await_pods("run")
    recovery = world.train("run", 61, checkpoint=60, generation=2, resumedFrom=60)["recovery"]
    assert (recovery["restarts"], recovery["restartsSinceCheckpoint"]) == (1, 0)
    assert recovery["lastCause"] == "worker-0: SIGTERM: saved (exit code 143)"


def test_a_rank_that_its_pod_restarted_is_told_by_the_pod(world: World) -> None:
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
    status = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, incidents=[incident], usefulSeconds=5.1,
        firstStartedAt=now - 60,
    )  # fmt: skip
    recovery = status["recovery"]
    told = recovery["lastIncident"]
    assert (told["kind"], told["pod"], told["rank"]) == ("rank", "worker-0", 3)
    assert told["node"] == world.api.get("Pod", world.namespace, "run-worker-0")["spec"]["nodeName"]
    assert recovery["restartsByKind"]["rank"] == 1
    assert recovery["lostIterations"] == 10
    assert 0 < recovery["goodput"] < 1

    def told_event() -> bool:
        events = world.api.list("Event", world.namespace)
        return any(
            (e["reason"], "rank 3 was killed" in e["message"]) == ("RankRestarted", True) for e in events
        )

    eventually(told_event, "an Event tells it")


def test_an_incident_of_which_no_times_are_known_yet_follows_one_with_times(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    now = time.time()
    incident = {"generation": 2, "kind": "rank", "cause": "rank 3 was killed by SIGKILL", "iteration": 60}
    incident |= {"resumedFrom": 50, "lastStepAt": now - 2, "detectedAt": now - 1, "metAt": now - 0.5}
    recovery = world.train(
        "run", 51, checkpoint=50, generation=2, resumedFrom=50, incidents=[incident | {"firstStepAt": now}]
    )["recovery"]
    assert recovery["lastIncident"]["seconds"]
    world.end("run-worker-0", 138, json.dumps({"message": "rank 3 was killed"}))
    world.await_reason("run", "Recovering", "PodsReplaced")
    last = world.status("run")["recovery"]["lastIncident"]
    assert (last["number"], last["kind"], "seconds" in last) == (2, "pod", False)

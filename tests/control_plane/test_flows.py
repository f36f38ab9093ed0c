"""The life of a recipe: created, prepared, trained, changed, suspended, deleted."""

from testkit.waiting import wait_until
from tests.control_plane.world import World

PREPARED = {
    "volume": {"size": "1Gi"},
    "prepare": {"source": "/usr/lib/python3.13", "include": "**/*.py", "name": "python"},
}


def test_a_recipe_becomes_a_job_that_trains_and_succeeds(world: World) -> None:
    world.apply("run")
    state = world.train(
        "run", 10, checkpoint=5, lmLoss=2.5, tokensPerSecond=1000.0, conditions={"Running": "Training"}
    )
    assert state.status["plan"]["worldSize"] == 4
    assert state.status["progress"]["display"] == "10/200"
    assert state.status["progress"]["lmLoss"] == 2.5
    assert state.conditions["Planned"]["status"] == "True"
    for place in ("run-worker-0", "run-master-0"):
        words = '{"reason": "Completed", "iteration": 200, "checkpointIteration": 200}'
        world.terminate(place, 0, words, "Completed")
    world.wait_for(
        "run",
        phase="Succeeded",
        status={"progress": {"display": "200/200"}, "checkpoint": {"iteration": 200}},
    )


def test_data_is_prepared_before_the_job_is_created(world: World) -> None:
    world.apply("run", data=PREPARED)
    wait_until("the job", lambda: world.job_exists("run"))
    prepare = world.api.get("Job", world.namespace, "run-prepare")
    assert prepare["status"]["succeeded"] == 1
    state = world.wait_for("run", job=True, conditions={"Prepared": "Prepared"})
    assert state.conditions["Prepared"]["status"] == "True"
    world.wait_for_only("PersistentVolumeClaim", "run-checkpoints", "run-data")


def test_a_changed_length_creates_a_new_job_that_requires_the_checkpoint(world: World) -> None:
    world.apply("run")
    old = world.train("run", 60, checkpoint=50).job_uid
    world.edit("run", training={"trainIters": 300})
    state = world.wait_for("run", job=True, without=[old], observed=True)
    assert state.arguments[state.arguments.index("--train-iters") + 1] == "300"
    assert "--override-opt-param-scheduler" in state.arguments
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
    state = world.train("run", 70, checkpoint=50, trainIters=300)
    assert state.status["progress"]["display"] == "70/300"


def test_a_change_that_pods_do_not_see_keeps_the_job(world: World) -> None:
    world.apply("run")
    old = world.train("run", 10).job_uid
    world.edit("run", recovery={"maxRestarts": 3})
    assert world.wait_for("run", observed=True).job_uid == old


def test_a_change_that_the_checkpoint_cannot_take_is_refused_and_the_run_continues(world: World) -> None:
    world.apply("run")
    old = world.train("run", 60, checkpoint=50).job_uid
    world.edit("run", model={"hiddenSize": 256})
    state = world.wait_for("run", conditions={"Planned": "CheckpointIncompatible"})
    message = state.conditions["Planned"]["message"]
    assert (
        "spec.model.hiddenSize: is 256, and the run's checkpoint of iteration 50 was made with 128" in message
    )
    assert "set it back, or start a new recipe under another name" in message
    assert world.train("run", 61, checkpoint=60).job_uid == old
    world.edit("run", model=None)
    assert world.wait_for("run", conditions={"Planned": "Planned"}, observed=True).job_uid == old


def test_suspending_releases_the_pods_and_resuming_continues_from_the_checkpoint(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    world.edit("run", suspend=True)
    world.wait_for("run", phase="Suspended", pods=0, job=False, observed=True)
    world.edit("run", suspend=False)
    state = world.wait_for("run", pods=2, job=True, observed=True)
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
    assert world.train("run", 61, checkpoint=50).recovery["restarts"] == 0


def test_deleting_removes_job_and_pods_and_keeps_the_checkpoints(world: World) -> None:
    world.apply("kept")
    world.apply("gone", checkpoint={"retainOnDelete": False})
    for name in ("kept", "gone"):
        world.wait_for(name, pods=2)
        world.api.delete("MegatronRecipe", world.namespace, name)
    world.wait_for_only("Pod")
    for kind in world.backend.kinds:
        world.wait_for_only(kind)
    # KWOK simulates no kubelet that unmounts: a claim's protection finalizer is removed with the pods.
    world.wait_for_only("PersistentVolumeClaim", "kept-checkpoints")


def test_a_recipe_re_created_under_its_name_takes_the_kept_checkpoints(world: World) -> None:
    world.apply("run")
    world.wait_for("run", pods=2)
    claim = world.api.get("PersistentVolumeClaim", world.namespace, "run-checkpoints")["metadata"]["uid"]
    world.api.delete("MegatronRecipe", world.namespace, "run")
    world.apply("run")
    world.wait_for("run", phase="Starting", pods=2, job=True)
    again = world.api.get("PersistentVolumeClaim", world.namespace, "run-checkpoints")["metadata"]["uid"]
    assert again == claim


def test_a_job_deleted_by_hand_is_re_created_from_the_checkpoint(world: World) -> None:
    world.apply("run")
    old = world.train("run", 60, checkpoint=50).job_uid
    world.api.delete(world.job_kind, world.namespace, "run", propagationPolicy="Background")
    state = world.wait_for("run", job=True, without=[old])
    assert state.environment["MEGATRON_REQUIRE_CHECKPOINT"] == "1"

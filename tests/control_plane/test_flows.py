"""A recipe's life: made, prepared, trained, changed, suspended, deleted."""

from tests.control_plane.eventually import eventually
from tests.control_plane.world import World

PREPARED = {
    "volume": {"size": "1Gi"},
    "prepare": {"source": "/usr/lib/python3.13", "include": "**/*.py", "name": "python"},
}


def test_a_recipe_becomes_a_job_that_trains_and_succeeds(world: World) -> None:
    world.apply("run")
    status = world.train("run", 10, checkpoint=5, lmLoss=2.5, tokensPerSecond=1000.0)
    assert status["plan"]["worldSize"] == 4
    assert status["progress"]["display"] == "10/200"
    assert status["progress"]["lmLoss"] == 2.5
    assert status["checkpoint"]["iteration"] == 5
    assert world.condition("run", "Planned")["status"] == "True"
    assert world.condition("run", "Running")["reason"] == "Training"
    for pod in ("run-worker-0", "run-master-0"):
        world.end(
            pod, 0, '{"reason": "Completed", "iteration": 200, "checkpointIteration": 200}', "Completed"
        )
    status = world.await_phase("run", "Succeeded")
    assert status["progress"]["display"] == "200/200"
    assert status["checkpoint"]["iteration"] == 200


def test_data_is_prepared_before_the_job_is_made(world: World) -> None:
    world.apply("run", data=PREPARED)
    eventually(lambda: world.job("run"), "the job is made")
    prepare = world.api.get("Job", world.namespace, "run-prepare")
    assert prepare["status"]["succeeded"] == 1
    assert world.await_reason("run", "Prepared", "Prepared")["status"] == "True"
    claims = {claim["metadata"]["name"] for claim in world.api.list("PersistentVolumeClaim", world.namespace)}
    assert claims == {"run-checkpoints", "run-data"}


def test_a_changed_length_makes_a_new_job_that_requires_the_checkpoint(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    old = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"]
    world.edit("run", training={"trainIters": 300})

    def replaced() -> bool:
        job = world.job("run")
        return job is not None and job["metadata"]["uid"] != old

    eventually(replaced, "the job is made anew")
    arguments = world.arguments("run")
    assert arguments[arguments.index("--train-iters") + 1] == "300"
    assert "--override-opt-param-scheduler" in arguments
    assert world.environment("run")["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
    assert world.train("run", 70, checkpoint=50, trainIters=300)["progress"]["display"] == "70/300"


def test_a_change_that_pods_do_not_see_keeps_the_job(world: World) -> None:
    world.apply("run")
    world.train("run", 10)
    old = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]
    world.edit("run", recovery={"maxRestarts": 3})
    eventually(lambda: world.status("run").get("observedGeneration") == 2, "the change is noticed")
    assert world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"] == old["uid"]


def test_a_change_that_the_checkpoint_cannot_take_is_refused_and_the_run_goes_on(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    old = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"]
    world.edit("run", model={"hiddenSize": 256})
    message = world.await_reason("run", "Planned", "CheckpointIncompatible")["message"]
    assert (
        "spec.model.hiddenSize: is 256, and the run's checkpoint of iteration 50 was made with 128" in message
    )
    assert "set it back, or start a new recipe under another name" in message
    assert world.train("run", 61, checkpoint=50)["phase"] == "Training"
    assert world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"] == old
    world.edit("run", model=None)
    world.await_reason("run", "Planned", "Planned")
    assert world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"] == old


def test_suspending_releases_the_pods_and_resuming_goes_on_from_the_checkpoint(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    world.edit("run", suspend=True)
    world.await_phase("run", "Suspended")
    eventually(lambda: not world.api.list("Pod", world.namespace), "all pods are gone")
    assert world.job("run") is None
    world.edit("run", suspend=False)
    world.await_pods("run")
    assert world.environment("run")["MEGATRON_REQUIRE_CHECKPOINT"] == "1"
    assert world.train("run", 61, checkpoint=50)["recovery"]["restarts"] == 0


def test_deleting_takes_job_and_pods_and_keeps_the_checkpoints(world: World) -> None:
    world.apply("kept")
    world.apply("gone", checkpoint={"retainOnDelete": False})
    for name in ("kept", "gone"):
        world.await_pods(name)
        world.api.delete("MegatronRecipe", world.namespace, name)
    eventually(lambda: not world.api.list("Pod", world.namespace), "all pods are gone")
    eventually(lambda: not world.api.list("PyTorchJob", world.namespace), "all jobs are gone")

    def claims() -> list[str]:
        return [c["metadata"]["name"] for c in world.api.list("PersistentVolumeClaim", world.namespace)]

    # KWOK plays no kubelet that would unmount: the protection finalizer of claims in use goes with the pods.
    eventually(lambda: claims() == ["kept-checkpoints"], "only the retained claim is left")


def test_a_recipe_made_again_under_its_name_takes_the_kept_checkpoints(world: World) -> None:
    world.apply("run")
    world.await_pods("run")
    claim = world.api.get("PersistentVolumeClaim", world.namespace, "run-checkpoints")["metadata"]["uid"]
    world.api.delete("MegatronRecipe", world.namespace, "run")
    world.apply("run")
    world.await_pods("run")
    world.await_phase("run", "Starting")
    again = world.api.get("PersistentVolumeClaim", world.namespace, "run-checkpoints")["metadata"]["uid"]
    assert again == claim


def test_a_job_deleted_by_hand_is_made_again_from_the_checkpoint(world: World) -> None:
    world.apply("run")
    world.train("run", 60, checkpoint=50)
    old = world.api.get("PyTorchJob", world.namespace, "run")["metadata"]["uid"]
    world.api.delete("PyTorchJob", world.namespace, "run", propagationPolicy="Background")

    def replaced() -> bool:
        job = world.job("run")
        return job is not None and job["metadata"]["uid"] != old

    eventually(replaced, "the job is made anew")
    assert world.environment("run")["MEGATRON_REQUIRE_CHECKPOINT"] == "1"

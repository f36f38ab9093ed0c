"""Objects of somebody else that have the names of a recipe's survive the recipe, on a real API server."""

import pytest

from testkit.api_server import Object
from testkit.waiting import wait_until
from tests.control_plane.world import World

PREPARED = {"volume": {"size": "1Gi"}, "prepare": {"source": "/text", "include": "*.txt"}}


def foreign_job(world: World, name: str) -> Object:
    """A batch Job of another program."""
    container = {"name": "work", "image": "work"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return world.api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {"suspend": True, "template": template},
        }
    )


def foreign_claim(world: World, name: str) -> Object:
    """A claim with somebody's data."""
    return world.api.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "control-plane-tests",
            },
        }
    )


def delete_recipe(world: World, name: str) -> None:
    """Delete the recipe, and wait until garbage collection has deleted what it owned."""
    uid = world.api.get("MegatronRecipe", world.namespace, name)["metadata"]["uid"]
    world.api.delete("MegatronRecipe", world.namespace, name)

    def nothing_owned() -> bool:
        found = [
            owner["uid"]
            for kind in ("Job", "PersistentVolumeClaim", world.job_kind)
            for each in world.api.list(kind, world.namespace)
            for owner in each["metadata"].get("ownerReferences") or []
        ]
        return uid not in found

    wait_until("garbage collection", nothing_owned)


@pytest.mark.parametrize("kind", ["Job", "PersistentVolumeClaim"])
def test_an_object_of_somebody_else_survives_the_recipe(world: World, kind: str) -> None:
    name, make = {
        "Job": ("taken-prepare", foreign_job),
        "PersistentVolumeClaim": ("taken-data", foreign_claim),
    }[kind]
    made = make(world, name)["metadata"]
    world.apply("taken", data=PREPARED)
    state = world.wait_for("taken", phase="Pending", conditions={"Running": "NameTaken"})
    message = state.conditions["Running"]["message"]
    assert message.startswith(f"{kind} {name} exists and is not this recipe's")
    assert not world.job_exists("taken")
    delete_recipe(world, "taken")
    left = world.api.get(kind, world.namespace, name)["metadata"]
    assert left["uid"] == made["uid"]
    assert "deletionTimestamp" not in left
    assert "ownerReferences" not in left
    # Kubernetes adds its own annotations when it binds a claim.
    ours = {*(left.get("annotations") or {}), *(left.get("labels") or {})}
    assert not [key for key in ours if "megatron.training" in key]


def test_a_recipe_continues_once_the_name_is_free(world: World) -> None:
    foreign_claim(world, "taken-checkpoints")
    world.apply("taken")
    world.wait_for("taken", phase="Pending", conditions={"Running": "NameTaken"})
    world.api.delete("PersistentVolumeClaim", world.namespace, "taken-checkpoints")
    world.wait_for("taken", pods=2, job=True)

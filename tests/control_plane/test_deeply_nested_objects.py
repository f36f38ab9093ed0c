"""Objects nested more deeply than Python's JSON decoder goes stop nobody else's run."""

import json
import subprocess
from pathlib import Path

import pytest
from localcluster import Cluster
from megatron_operator.api.labels import LABEL_RECIPE

from testkit.api_server import Object
from tests.control_plane.world import World

NESTED = "NESTED"


def create(cluster: Cluster, file: Path, obj: Object, opening: str, closing: str, levels: int) -> None:
    """Create an object with that many levels in place of NESTED."""
    text = json.dumps(obj).replace(f'"{NESTED}"', opening * levels + "{}" + closing * levels)
    file.write_text(text)
    kubectl = [cluster.paths.binary("kubectl"), "--kubeconfig", cluster.kubeconfig]
    subprocess.run([*kubectl, "create", "--validate=false", "-f", file], check=True)


@pytest.mark.parametrize(
    ("opening", "closing", "levels"), [("[", "]", 8_000), ('{"a":', "}", 1_200)], ids=["lists", "objects"]
)
def test_a_deeply_nested_recipe_stops_no_other(
    world: World, cluster: Cluster, tmp_path: Path, opening: str, closing: str, levels: int
) -> None:
    recipe = {
        "apiVersion": "megatron.training/v1alpha1",
        "kind": "MegatronRecipe",
        "metadata": {"name": "deep", "namespace": world.namespace},
        "spec": {
            "recipe": "tiny-gpt",
            "accelerator": {"count": 4, "perNode": 2},
            "data": {"mockData": True},
            "megatronArgs": {"x": NESTED},
        },
    }
    try:
        create(cluster, tmp_path / "deep.json", recipe, opening, closing, levels)
        world.apply("other")
        world.train("other", 10)
    finally:
        world.api.delete("MegatronRecipe", world.namespace, "deep")


def test_deeply_nested_managed_fields_of_a_pod_stop_no_run(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    """Whoever may create pods may give them the label of a recipe, and managed fields of any depth."""
    managed = {
        "manager": "somebody",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": NESTED,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "deep",
            "namespace": world.namespace,
            "labels": {LABEL_RECIPE: "other"},
            "managedFields": [managed],
        },
        "spec": {"containers": [{"name": "a", "image": "registry.example/a"}]},
    }
    try:
        create(cluster, tmp_path / "deep.json", pod, '{"f:a":', "}", 3_000)
        world.apply("other")
        world.train("other", 10)
    finally:
        world.api.delete("Pod", world.namespace, "deep")

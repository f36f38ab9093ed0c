"""Every recipe of tests/refusals on a real API server: the CRD refuses it with the message of `megatron
validate`.

The API server accepts what only the planner can refuse; the operator then reports the same message in the
status.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from localcluster import Cluster
from megatron_operator.api.labels import API_VERSION, KIND
from megatron_operator.api.validation import parse_spec
from megatron_operator.cli.main import cli

from tests.control_plane.conftest import PLATFORM
from tests.control_plane.world import World

REFUSALS = sorted((Path(__file__).parents[1] / "refusals").glob("*.yaml"))

REFUSED_BY_THE_PLANNER = (
    "batch-not-divisible",
    "count-not-a-multiple-of-the-node",
    "flag-set-by-a-field",
    "layers-not-divisible",
    "several-at-once",
    "unknown-accelerator",
    "unknown-recipe",
)
"""Those that are refused on simulated accelerators too."""


def header(path: Path, key: str) -> list[str]:
    return [line[len(key) :] for line in path.read_text().splitlines() if line.startswith(key)]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.stem)
def test_kubectl_apply_refuses_what_the_crd_can_check(path: Path, cluster: Cluster) -> None:
    kubectl = [cluster.paths.binary("kubectl"), "--kubeconfig", cluster.kubeconfig]
    done = subprocess.run(
        [*kubectl, "apply", "--dry-run=server", "-f", path], text=True, capture_output=True, check=False
    )
    [by] = header(path, "# refused by: ")
    match by:
        case "planner":
            assert done.returncode == 0, done.stderr
        case "schema":
            assert done.returncode == 1
            for words in header(path, "# kubectl prints: "):
                assert words in done.stderr
        case "rule":
            assert done.returncode == 1
            printed = header(path, "# kubectl prints: ")
            assert all(words in done.stderr for words in printed), done.stderr
            for line in [] if printed else header(path, "# spec"):
                field, _, words = f"spec{line}".partition(": ")
                assert f"{field}: Invalid value: {words}" in done.stderr


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "empty",
    [
        {"checkpoint": None, "recovery": None, "scheduling": None, "suspend": None},
        {"recovery": {"loss": None, "nodes": {"avoidAfter": None}}},
        {
            "data": {
                "volume": {"claimName": "corpus"},
                "prepare": {"source": "/data/text", "name": None, "appendEod": None},
            }
        },
    ],
    ids=", ".join,
)
def test_nulls_of_fields_with_a_default_are_read_as_the_api_server_stores_them(
    empty: dict[str, Any], cluster: Cluster, tmp_path: Path
) -> None:
    spec = {"recipe": "tiny-gpt", "accelerator": {"count": 4}, "data": {"mockData": True}} | empty
    recipe = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "nulls"}, "spec": spec}
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe))
    kubectl = [cluster.paths.binary("kubectl"), "--kubeconfig", cluster.kubeconfig]
    done = subprocess.run(
        [*kubectl, "apply", "--dry-run=server", "-o", "json", "-f", path],
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert parse_spec(json.loads(done.stdout)["spec"]) == parse_spec(spec)


@pytest.mark.parametrize("name", REFUSED_BY_THE_PLANNER)
def test_the_status_has_the_message_of_validate(name: str, world: World, tmp_path: Path) -> None:
    path = next(path for path in REFUSALS if path.stem == name)
    recipe: dict[str, Any] = yaml.safe_load(path.read_text())
    recipe["metadata"]["namespace"] = world.namespace
    if name != "unknown-accelerator":
        recipe["spec"]["accelerator"]["type"] = "simulated"
    world.api.apply(recipe)
    refused = world.wait_for(recipe["metadata"]["name"], conditions={"Planned": "Refused"})
    condition = refused.conditions["Planned"]
    assert condition["status"] == "False"
    assert condition["message"].splitlines() == validate(recipe, tmp_path)
    assert not world.job_exists(recipe["metadata"]["name"])
    assert world.api.list("PersistentVolumeClaim", world.namespace) == []


def validate(recipe: dict[str, Any], folder: Path) -> list[str]:
    """The lines that `megatron validate` prints for a recipe that it refuses."""
    file, platform = folder / "recipe.json", folder / "platform.json"
    file.write_text(json.dumps(recipe))
    platform.write_text(json.dumps(PLATFORM))
    result = CliRunner().invoke(cli, ["validate", "-f", str(file), "--platform", str(platform)])
    assert result.exit_code == 2
    return result.stderr.splitlines()


def test_recipes_are_selected_by_phase_and_name_of_the_recipe(world: World) -> None:
    world.apply("runs")
    world.apply("refused", parallelism={"tensorModelParallelSize": 2}, recipe="no-such-recipe")
    world.wait_for("refused", phase="Refused")
    world.wait_for("runs", pods=2)

    def selected(selector: str) -> set[str]:
        found = world.api.list("MegatronRecipe", world.namespace, fieldSelector=selector)
        return {each["metadata"]["name"] for each in found}

    assert selected("status.phase=Refused") == {"refused"}
    assert selected("spec.recipe=tiny-gpt,status.phase!=Refused") == {"runs"}

"""Every recipe of tests/refusals under a real API server: the CRD refuses what it can, in the same words.

What only the planner sees is accepted, and the operator says in the object what `megatron validate` says.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from localcluster import Cluster
from megatron_operator.cli.main import cli

from tests.control_plane.conftest import PLATFORM
from tests.control_plane.world import World

REFUSALS = sorted((Path(__file__).parents[1] / "refusals").glob("*.yaml"))

SEEN_BY_THE_PLANNER = (
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
def test_kubectl_apply_refuses_what_the_crd_can_say(path: Path, plane: Cluster) -> None:
    kubectl = [plane.layout.binary("kubectl"), "--kubeconfig", plane.kubeconfig]
    done = subprocess.run(
        [*kubectl, "apply", "--dry-run=server", "-f", path], text=True, capture_output=True, check=False
    )
    [by] = header(path, "# refused by: ")
    match by:
        case "planner":
            assert done.returncode == 0, done.stderr
        case "schema":
            assert done.returncode == 1
            for words in header(path, "# kubectl says: "):
                assert words in done.stderr
        case "rule":
            assert done.returncode == 1
            for line in header(path, "# spec"):
                field, _, words = f"spec{line}".partition(": ")
                assert f"{field}: Invalid value: {words}" in done.stderr


@pytest.mark.parametrize("name", SEEN_BY_THE_PLANNER)
def test_the_object_says_what_validate_says(name: str, world: World, tmp_path: Path) -> None:
    path = next(path for path in REFUSALS if path.stem == name)
    recipe: dict[str, Any] = yaml.safe_load(path.read_text())
    recipe["metadata"]["namespace"] = world.namespace
    if name != "unknown-accelerator":
        recipe["spec"]["accelerator"]["type"] = "simulated"
    world.api.apply(recipe)
    condition = world.await_reason(recipe["metadata"]["name"], "Planned", "Refused")
    assert condition["status"] == "False"
    assert condition["message"].splitlines() == validate(recipe, tmp_path)
    assert world.job(recipe["metadata"]["name"]) is None
    assert world.api.list("PersistentVolumeClaim", world.namespace) == []


def validate(recipe: dict[str, Any], folder: Path) -> list[str]:
    """What `megatron validate` prints for it."""
    file, platform = folder / "recipe.json", folder / "platform.json"
    file.write_text(json.dumps(recipe))
    platform.write_text(json.dumps(PLATFORM))
    result = CliRunner().invoke(cli, ["validate", "-f", str(file), "--platform", str(platform)])
    assert result.exit_code == 2
    return result.stderr.splitlines()

"""`megatron support-bundle` and `megatron history` of a run whose status the operator has written."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from localcluster import Cluster
from megatron_operator.cli.main import cli

from tests.control_plane.world import World


@pytest.fixture
def megatron(world: World, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command of the CLI in the namespace of the test; returns what it prints."""
    monkeypatch.setenv("PATH", str(Path(cluster.paths.binary("kubectl")).parent), prepend=":")

    def run(*words: str) -> str:
        cluster_words = ["--namespace", world.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        done = CliRunner().invoke(cli, [*words, *cluster_words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_a_run_is_bundled_with_its_status_and_its_events_alone(
    world: World, megatron: Any, tmp_path: Path
) -> None:
    for name in ("run", "run-2"):
        world.apply(name)
        world.train(name, 10, checkpoint=5)
    archive = tmp_path / "bundle.tar.gz"
    megatron("support-bundle", "run", "--archive", str(archive))
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            file = opened.extractfile(member)
            assert file is not None
            found[Path(member.name).name] = file.read()
    status = yaml.safe_load(found["recipe.yaml"])["status"]
    assert status["progress"]["iteration"] == 10
    assert status["warnings"] == []
    involved = {event["involvedObject"]["name"] for event in yaml.safe_load(found["events.yaml"])}
    assert "run" in involved
    assert not [name for name in involved if name.startswith("run-2")]


def test_the_history_of_a_recipe_that_was_created_again_begins_with_it(world: World, megatron: Any) -> None:
    world.apply("run", recipe="no-such-recipe")
    world.wait_for("run", phase="Refused")
    world.api.delete("MegatronRecipe", world.namespace, "run")
    world.wait_for_only("MegatronRecipe")
    world.apply("run")
    world.wait_for("run", pods=2)
    timeline = json.loads(megatron("history", "run", "-o", "json"))["timeline"]
    reasons = [entry["reason"] for entry in timeline]
    assert reasons[0] == "Created"
    assert "Refused" not in reasons

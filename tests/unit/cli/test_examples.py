"""Every file of examples/ is a valid recipe."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def recipe(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_renders_a_job(path: Path) -> None:
    result = megatron("validate", "-f", str(path))
    assert result.stderr == ""
    assert result.exit_code == 0
    rendered = yaml.safe_load_all(megatron("render", "-f", str(path)).stdout)
    assert "PyTorchJob" in [manifest["kind"] for manifest in rendered]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_starts_with_a_comment_and_is_named_as_its_file(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert recipe(path)["metadata"]["name"] in path.stem


ELASTIC = [path for path in EXAMPLES if "elastic" in recipe(path)["spec"].get("recovery", {})]


@pytest.mark.parametrize("path", ELASTIC, ids=lambda path: path.stem)
def test_an_elastic_example_is_valid_on_its_smallest_count(path: Path) -> None:
    smallest = recipe(path)["spec"]["recovery"]["elastic"]["minCount"]
    assert megatron("validate", "-f", str(path), "--gpus", str(smallest)).exit_code == 0


def test_there_is_an_elastic_example() -> None:
    assert ELASTIC

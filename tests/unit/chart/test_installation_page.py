"""docs/installation.md and the chart's page: what they have people type is accepted."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from megatron_operator.cli.main import cli
from megatron_operator.controller.config_source import PLATFORM_KEY, parse_platform

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "installation.md").read_text()
VALUES, RECIPE = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.strip() for line in re.findall(r"^    (.*)$", PAGE, re.MULTILINE)]


def platform_of(objects: list[dict[str, Any]]) -> str:
    (text,) = [item["data"][PLATFORM_KEY] for item in objects if PLATFORM_KEY in item.get("data", {})]
    return str(text)


def test_the_values_of_the_page_install_a_platform_that_the_operator_accepts(render: Any) -> None:
    platform = parse_platform(platform_of(render(yaml.safe_load(VALUES))), "the page")
    assert platform.default_accelerator == "h100"


def test_the_recipe_of_the_page_is_valid_on_the_platform_of_the_page(tmp_path: Path) -> None:
    recipe, platform = tmp_path / "recipe.yaml", tmp_path / "platform.yaml"
    recipe.write_text(RECIPE)
    platform.write_text(yaml.safe_dump(yaml.safe_load(VALUES)["platform"]))
    done = CliRunner().invoke(cli, ["validate", "-f", str(recipe), "--platform", str(platform)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "platforms").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_command_of_the_page_makes_values_of_every_ready_platform(
    path: Path, tmp_path: Path, render: Any
) -> None:
    (command,) = [line for line in COMMANDS if "platform-values.yaml" in line]
    command = command.replace("examples/platforms/eks-p5.yaml", str(path))
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert parse_platform(platform_of(render(tmp_path / "platform-values.yaml")), path.name).accelerators


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("megatron ")])
def test_the_commands_of_the_cli_succeed(command: str) -> None:
    done = CliRunner().invoke(cli, command.split()[1:])
    assert done.exit_code == 0, done.output


def test_the_shell_leaves_the_backslashes_of_the_commands_in_the_table() -> None:
    commands = [each for each in re.findall(r"`(kubectl [^`]+)`", PAGE) if "\\" in each]
    assert commands
    for command in commands:
        assert "".join(shlex.split(command)).count("\\") == command.count("\\"), command


def test_files_that_the_commands_name_exist() -> None:
    paths = re.findall(r"(?:-f|install \S+) ((?:operator|trainer-image|charts)/\S+)", "\n".join(COMMANDS))
    assert len(paths) >= 3
    for path in paths:
        assert (ROOT / path).exists(), path


def test_the_charts_page_matches_its_values() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "chart_page.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

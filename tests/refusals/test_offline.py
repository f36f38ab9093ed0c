"""Every recipe of tests/refusals is rejected offline, with exactly the messages in the file."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from megatron_operator import catalog
from megatron_operator.cli.main import cli

REFUSALS = sorted(Path(__file__).parent.glob("*.yaml"))


def expected_lines(path: Path) -> list[str]:
    entries = str(len(catalog.load()))
    lines = path.read_text().replace("{entries}", entries).splitlines()
    return [line[2:] for line in lines if line.startswith("# spec")]


@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.stem)
def test_validate_prints_every_error_with_its_fix(path: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", "-f", str(path)])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == expected_lines(path)
    assert result.stdout == ""


@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.stem)
def test_validate_prints_the_same_errors_as_json(path: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", "-f", str(path), "-o", "json"])
    assert result.exit_code == 2
    errors = json.loads(result.stdout)["errors"]
    assert [f"{e['field']}: {e['message']}; {e['fix']}" for e in errors] == expected_lines(path)


@pytest.mark.parametrize("path", REFUSALS, ids=lambda path: path.stem)
def test_the_file_names_the_stage_that_rejects_it(path: Path) -> None:
    assert re.match(r"# refused by: (schema|rule|planner)\n", path.read_text())


def test_there_are_at_least_25_recipes() -> None:
    assert len(REFUSALS) >= 25

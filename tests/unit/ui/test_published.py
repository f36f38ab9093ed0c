"""The comparison with the published recipe, in a process of its own."""

from pathlib import Path

import pytest
from megatron_operator.ui.published import PublishedRecipes

from testkit.example_runs import ExampleRuns


async def test_files_of_the_working_directory_are_not_imported(
    runs: ExampleRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    found = await PublishedRecipes(None, None).difference(next(iter(runs.recipes.values())))
    assert found.problem is None


async def test_a_text_that_looks_like_a_number_stays_a_text(runs: ExampleRuns) -> None:
    recipe = next(iter(runs.recipes.values()))
    recipe |= {"spec": recipe["spec"] | {"env": {"RATE": "1e3"}}}
    assert (await PublishedRecipes(None, None).difference(recipe)).problem is None

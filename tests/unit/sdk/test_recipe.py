"""Recipes from names, dicts and files; their errors and plans."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from megatron_operator.api import yaml_documents
from megatron_operator.cli.main import cli
from megatron_operator.sdk import InvalidRecipeError, Recipe

ROOT = Path(__file__).parents[3]
MOCK = {"mockData": True}


def test_a_name_with_overrides_is_the_recipe_of_a_file() -> None:
    made = Recipe(
        "llama3-8b",
        accelerator="h100-sxm",
        count=64,
        name="ours",
        namespace="research",
        training={"globalBatchSize": 512},
        image_pull_secrets=("registry",),
    )
    assert made.to_dict() == {
        "apiVersion": "megatron.training/v1beta1",
        "kind": "MegatronRecipe",
        "metadata": {"name": "ours", "namespace": "research"},
        "spec": {
            "recipe": "llama3-8b",
            "training": {"globalBatchSize": 512},
            "imagePullSecrets": ["registry"],
            "accelerator": {"type": "h100-sxm", "count": 64},
        },
    }


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_is_written_as_it_is_read(path: Path, tmp_path: Path) -> None:
    recipe = Recipe.from_file(path)
    written = tmp_path / "recipe.yaml"
    written.write_text(recipe.to_yaml())
    assert Recipe.from_file(written) == recipe == Recipe.from_dict(yaml_documents.load(path.read_text()))


@pytest.mark.parametrize("text", ["1e3", "yes", "010", "0o7", "1.5", "null", "2026-01-01", ".inf", "a: b"])
def test_a_string_stays_a_string_in_yaml(text: str) -> None:
    recipe = Recipe("llama3-8b", count=8, data=MOCK, env={"VALUE": text})
    assert yaml_documents.load(recipe.to_yaml())["spec"]["env"] == {"VALUE": text}
    assert yaml.safe_load(recipe.to_yaml())["spec"]["env"] == {"VALUE": text}


def test_what_the_api_server_sets_is_not_part_of_a_recipe() -> None:
    recipe = Recipe("llama3-8b", count=8, data=MOCK)
    read = recipe.to_dict() | {"status": {"phase": "Training"}}
    read["metadata"] |= {"uid": "u", "resourceVersion": "1", "managedFields": [], "labels": {"team": "nlp"}}
    assert Recipe.from_dict(read).to_dict()["metadata"] == {"name": "llama3-8b", "labels": {"team": "nlp"}}
    assert "status" not in Recipe.from_dict(read).to_dict()


def test_the_caller_cannot_change_a_recipe() -> None:
    data: dict[str, Any] = {"mockData": True}
    recipe = Recipe("llama3-8b", count=8, data=data)
    data["mockData"] = False
    recipe.to_dict()["spec"]["data"] = None
    assert recipe.to_dict()["spec"]["data"] == MOCK


def test_replace_merges_maps_and_removes_what_is_none() -> None:
    recipe = Recipe("llama3-8b", count=8, data=MOCK, training={"lr": 1e-4, "seed": 1}, image="a:1")
    other = recipe.replace(count=16, training={"lr": 2e-4, "seed": None}, image=None, name="other")
    assert other.to_dict()["spec"] == {
        "recipe": "llama3-8b",
        "data": MOCK,
        "training": {"lr": 2e-4},
        "accelerator": {"count": 16},
    }
    assert (recipe.name, other.name) == ("llama3-8b", "other")


@pytest.mark.parametrize(
    "removed", [{"env": {"A": None}}, {"recovery": {"elastic": None}}, {"megatron_args": {"adam-eps": None}}]
)
def test_replace_removes_a_field_of_a_section_that_the_recipe_does_not_have(removed: dict[str, Any]) -> None:
    recipe = Recipe("llama3-8b", count=8, data=MOCK)
    assert recipe.replace(**removed).to_dict() == recipe.to_dict()


@pytest.mark.parametrize(
    ("arguments", "field", "part", "fix"),
    [
        ({"count": 0}, "spec.accelerator.count", "0", "set at least 1"),
        ({}, "spec.accelerator.count", "is required", "set the number of accelerators of the whole run"),
        ({"count": 8, "acelerator": "h100"}, "spec.acelerator", "unknown", "did you mean `accelerator`?"),
        (
            {"count": 8, "training": {"global_batch_size": 8}},
            "spec.training.global_batch_size",
            "unknown field",
            "did you mean `globalBatchSize`?",
        ),
        ({"count": 8, "env": {"A": object()}}, "spec.env", "object object", "use strings, numbers"),
        ({"count": 8, "name": "Not_A_Name"}, "metadata.name", "'Not_A_Name'", ""),
    ],
)
def test_an_error_names_field_value_and_fix(
    arguments: dict[str, Any], field: str, part: str, fix: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        Recipe("llama3-8b", **arguments)
    [error] = refused.value.errors
    assert error.field == field
    assert part in error.message
    assert fix in error.fix


def test_validate_raises_what_the_command_prints() -> None:
    recipe = Recipe("llama3-8b", accelerator="h100-sxm", count=12, data=MOCK)
    with pytest.raises(InvalidRecipeError) as refused:
        recipe.validate()
    words = ["validate", "--recipe", "llama3-8b", "--gpus", "12", "--accelerator", "h100-sxm"]
    assert CliRunner().invoke(cli, words).stderr.splitlines() == [str(each) for each in refused.value.errors]
    recipe.replace(count=16).validate()


def test_a_recipe_without_data_is_planned_and_not_valid() -> None:
    recipe = Recipe("llama3-8b", accelerator="h100-sxm", count=16)
    assert recipe.plan().plan.world_size == 16
    with pytest.raises(InvalidRecipeError, match=r"^spec\.data: is required"):
        recipe.validate()


def test_the_plan_is_that_of_the_command() -> None:
    plan = Recipe("llama3-8b", accelerator="h100-sxm", count=64, data=MOCK).plan()
    words = ["plan", "--recipe", "llama3-8b", "--gpus", "64", "--accelerator", "h100-sxm", "-o", "json"]
    printed = json.loads(CliRunner().invoke(cli, words).stdout)
    assert plan.accelerator == "h100-sxm"
    assert plan.layout.tp == printed["tensorModelParallelSize"]
    assert plan.layout.world_size == 64
    assert plan.memory is not None
    assert plan.memory.total == printed["memoryPerGpu"]["total"]
    assert plan.step_seconds == printed["expected"]["stepSeconds"]
    assert plan.tokens_per_second == printed["expected"]["tokensPerSecondPerGpu"] * 64
    assert plan.run_seconds == printed["runSeconds"]
    assert len(plan.alternatives) == len(printed["alternatives"])
    assert "--tensor-model-parallel-size" in plan.arguments


def test_a_platform_file_and_a_catalog_directory_are_used(tmp_path: Path) -> None:
    platform = tmp_path / "platform.yaml"
    platform.write_text(yaml.safe_dump({"image": "a:1", "accelerators": {"ours": {"hardware": "h100-sxm"}}}))
    ours = {"extends": "llama3-8b", "description": "Ours", "source": "our own runs"}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({"entries": {"ours-8b": ours}}))
    recipe = Recipe("ours-8b", count=16, data=MOCK)
    folder = tmp_path / "catalog"
    folder.mkdir()
    (tmp_path / "ours.yaml").rename(folder / "ours.yaml")
    assert recipe.plan(platform=platform, catalog=folder).accelerator == "ours"
    with pytest.raises(InvalidRecipeError, match=r"spec\.recipe"):
        recipe.plan(platform=platform)


@pytest.mark.parametrize("method", ["plan", "validate"])
def test_files_that_cannot_be_read_are_errors_of_the_recipe(method: str, tmp_path: Path) -> None:
    recipe = Recipe("llama3-8b", count=16, data=MOCK)
    missing = tmp_path / "missing"
    broken = tmp_path / "catalog"
    broken.mkdir()
    (broken / "ours.yaml").write_text("entries: [")
    for arguments in ({"platform": missing}, {"catalog": missing}, {"catalog": broken}):
        with pytest.raises(InvalidRecipeError) as refused:
            getattr(recipe, method)(**arguments)
        assert str(next(iter(arguments.values()))) in str(refused.value)
    with pytest.raises(InvalidRecipeError, match="no such file"):
        Recipe.from_file(missing)


def test_one_of_several_recipes_of_a_file_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "recipes.yaml"
    made = [Recipe("llama3-8b", count=8, name=name, data=MOCK) for name in ("one", "two")]
    path.write_text("---\n".join(each.to_yaml() for each in made))
    assert Recipe.from_file(path, name="two").name == "two"
    for name in (None, "three"):
        with pytest.raises(InvalidRecipeError, match="choose one by name: one, two"):
            Recipe.from_file(path, name=name)

"""`megatron render` and `--platform`: objects that kubectl accepts, and files as the pages write them."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.api import yaml_documents
from megatron_operator.cli.main import cli

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = EXAMPLES / "llama3-8b.yaml"
PROFILE = {"hardware": "h100-sxm", "perNode": 8}


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def platform(tmp_path: Path, content: object) -> str:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.parametrize("example", ["llama3-8b.yaml", "mixtral-8x7b.yaml", "qwen3-8b-elastic.yaml"])
def test_json_is_one_list_and_yaml_is_read_by_kubectl_as_the_same_objects(example: str) -> None:
    words = ["render", "-f", str(EXAMPLES / example)]
    rendered = json.loads(megatron(*words, "-o", "json").stdout)
    assert (rendered["apiVersion"], rendered["kind"]) == ("v1", "List")
    # Numbers without a dot, such as the argument 3e-05, are texts to PyYAML and numbers to kubectl.
    assert rendered["items"] == yaml_documents.load_all(megatron(*words).stdout)


def test_objects_without_a_known_uid_have_no_owner() -> None:
    for item in yaml.safe_load_all(megatron("render", "-f", str(EXAMPLE)).stdout):
        assert "ownerReferences" not in item["metadata"]


def test_the_uid_of_a_recipe_from_the_cluster_is_that_of_the_owner(tmp_path: Path) -> None:
    recipe = yaml.safe_load(EXAMPLE.read_text())
    recipe["metadata"]["uid"] = "1234"
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    *_, job = yaml.safe_load_all(megatron("render", "-f", str(path)).stdout)
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == ["1234"]


@pytest.mark.parametrize("kind", ["h100-sxm", "H100", "hopper"])
def test_a_recipe_may_name_the_hardware_of_a_profile(tmp_path: Path, kind: str) -> None:
    file = platform(tmp_path, {"image": "trainer:1", "accelerators": {"hopper": PROFILE}})
    done = megatron("plan", "-f", str(EXAMPLE), "--platform", file, "--accelerator", kind, "-o", "json")
    assert json.loads(done.stdout)["runnable"], done.output


@pytest.mark.parametrize(("command", "recipes"), [("validate", 2), ("diff", 1), ("plan", 1)])
def test_a_platform_on_standard_input_is_that_of_every_plan(
    command: str, recipes: int, tmp_path: Path
) -> None:
    recipe = yaml_documents.load(EXAMPLE.read_text())
    file = tmp_path / "recipes.yaml"
    named = [recipe | {"metadata": {"name": f"run-{number}"}} for number in range(recipes)]
    file.write_text("---\n".join(map(yaml_documents.dump, named)))
    on = platform(tmp_path, {"image": "trainer:1", "accelerators": {"h100": PROFILE}})
    words = [command, "-f", str(file), "--platform"]
    piped = CliRunner().invoke(cli, [*words, "-"], input=Path(on).read_text(), catch_exceptions=False)
    assert (piped.exit_code, piped.stdout) == (0, megatron(*words, on).stdout)


def test_hardware_that_several_profiles_have_is_refused_unless_one_is_the_default(tmp_path: Path) -> None:
    content = {"image": "trainer:1", "accelerators": {"east": PROFILE, "west": PROFILE}}
    done = megatron("validate", "-f", str(EXAMPLE), "--platform", platform(tmp_path, content))
    assert done.stderr == (
        "spec.accelerator.type: 'h100-sxm' is the hardware of several accelerators of the platform; "
        "use one of: east, west\n"
    )
    chosen = platform(tmp_path, content | {"defaultAccelerator": "west"})
    assert megatron("validate", "-f", str(EXAMPLE), "--platform", chosen).exit_code == 0


def test_values_of_the_chart_are_a_platform_file(tmp_path: Path) -> None:
    content = {"image": "trainer:1", "accelerators": {"h100": PROFILE}}
    values = platform(tmp_path, {"image": "operator:1", "webhook": {"enabled": True}, "platform": content})
    done = megatron("render", "-f", str(EXAMPLE), "--platform", values, "-o", "json")
    assert "trainer:1" in done.stdout
    assert "operator:1" not in done.stdout


def test_a_mix_of_values_and_platform_file_is_refused(tmp_path: Path) -> None:
    file = platform(tmp_path, {"platform": {"accelerators": {"h100": PROFILE}}, "queue": "research"})
    done = megatron("validate", "-f", str(EXAMPLE), "--platform", file)
    assert done.exit_code == 2
    assert done.stderr.endswith("move queue below platform\n")

"""`megatron render` and `--platform`: objects that kubectl accepts, and files as the pages write them."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama3-8b.yaml"
PROFILE = {"hardware": "h100-sxm", "perNode": 8}


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def platform(tmp_path: Path, content: object) -> str:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_json_is_one_list_that_kubectl_reads() -> None:
    rendered = json.loads(megatron("render", "-f", str(EXAMPLE), "-o", "json").stdout)
    assert (rendered["apiVersion"], rendered["kind"]) == ("v1", "List")
    in_yaml = yaml.safe_load_all(megatron("render", "-f", str(EXAMPLE)).stdout)
    assert rendered["items"] == list(in_yaml)


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

"""Three journeys of new users, with nothing but what the pages have them type."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli
from megatron_operator.controller.config_source import PLATFORM_KEY, parse_platform

from tests.unit.docs.blocks import ROOT, Block, blocks, commands

DATA = ROOT / "operator" / "megatron_operator" / "catalog" / "data"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new user's working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, prog_name="megatron", catch_exceptions=False)


def succeed(*words: str) -> str:
    done = megatron(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def cli_block(page: str) -> Block:
    """The page's block of commands of the CLI alone."""
    found = [b for b in blocks() if b.page == ROOT / page and b.text.startswith("    megatron ")]
    assert len(found) == 1
    return found[0]


def switch_on(recipe: str, names: list[str]) -> str:
    """A recipe of `init` with the settings of these names switched on, and without random tokens."""
    for name in names:
        recipe, count = re.subn(rf"^(\s*)#({name}:)", r"\1\2", recipe, flags=re.MULTILINE)
        assert count == 1, name
    return re.sub(r"^ *mockData: true\n", "", recipe, flags=re.MULTILINE)


def test_train_on_32_h100_from_the_readme_alone() -> None:
    printed = {}
    for command in commands(cli_block("README.md")):
        printed[command.words[1]] = succeed(*command.words[1:])
    assert printed["recommend"].startswith("llama3-8b\n")
    assert "Next: megatron plan --recipe llama3-8b --gpus 32" in printed["recommend"]
    recipe = Path("recipe.yaml")
    recipe.write_text(switch_on(recipe.read_text(), ["volume", "tokenizer", "blend"]))
    succeed("validate", "-f", "recipe.yaml")
    objects = list(yaml.safe_load_all(succeed("render", "-f", "recipe.yaml")))
    (job,) = [each for each in objects if each["kind"] == "PyTorchJob"]
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    assert sum(each["replicas"] for each in replicas) * 8 == 32
    assert "--mock-data" not in succeed("args", "-f", "recipe.yaml")


@pytest.mark.parametrize(
    ("model", "mode", "recipe"),
    [
        ("meta-llama/Llama-3.1-8B", "lora", "llama3.1-8b-lora"),
        ("Qwen/Qwen3-8B", "sft", "qwen3-8b-sft"),
    ],
)
def test_fine_tune_a_model_by_its_name_on_hugging_face(model: str, mode: str, recipe: str) -> None:
    """From `recommend` on, each command is the one that the last one printed."""
    on = ("--gpus", "8", "--accelerator", "h100-sxm")
    printed = succeed("recommend", "--model", model, "--mode", mode, *on)
    first = re.search(r"^Next: megatron (.*)$", printed, re.MULTILINE)
    assert first is not None
    written = megatron(*first[1].split())
    second = re.search(r"next: megatron (.*)$", written.stderr, re.MULTILINE)
    assert second is not None
    assert f"{recipe} on 8 x h100-sxm" in succeed(*second[1].split())
    file = Path("recipe.yaml")
    file.write_text(switch_on(file.read_text(), ["export", "sources", "split", "maxEpochs"]))
    valid = succeed("validate", "-f", "recipe.yaml")
    assert re.findall(r"^  (import|export):", valid, re.MULTILINE) == ["import", "export"]
    objects = list(yaml.safe_load_all(succeed("render", "-f", "recipe.yaml")))
    assert {"PyTorchJob", "Job"} <= {each["kind"] for each in objects}


def test_install_it_and_own_it(render: Any) -> None:
    page = [b for b in blocks() if b.page.name == "installation.md" and b.language == "yaml"]
    values, recipe = (block.text for block in page)
    Path("values.yaml").write_text(values)
    objects = render(Path("values.yaml"))
    kinds = {each["kind"] for each in objects}
    assert {"CustomResourceDefinition", "Deployment", "ClusterRole", "ConfigMap"} <= kinds
    (text,) = [each["data"][PLATFORM_KEY] for each in objects if PLATFORM_KEY in each.get("data", {})]
    parse_platform(text, "values.yaml")
    Path("recipe.yaml").write_text(recipe)
    succeed("validate", "-f", "recipe.yaml", "--platform", "values.yaml")
    rendered = succeed("render", "-f", "recipe.yaml", "--platform", "values.yaml")
    assert "registry.example/ml/megatron-trainer" in rendered
    # What fails next is found where the page sends the owner: each line has a cause that can be acted on.
    refused = megatron("validate", "-f", "recipe.yaml", "--platform", "values.yaml", "--accelerator", "b200")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("use one of: h100\n")
    assert megatron("explain", "status.recovery").exit_code == 0


def test_add_a_recipe_as_a_contributor(empty_folder: Path) -> None:
    """As in CONTRIBUTING.md: the file of a similar family is copied, and tried with --catalog."""
    family = empty_folder / "ours"
    family.mkdir()
    entry = {"extends": "llama3-8b", "description": "Ours 8B", "training": {"lr": 2.0e-4}}
    (family / "ours.yaml").write_text(yaml.safe_dump({"entries": {"ours-8b": entry}}))
    refused = megatron("plan", "--recipe", "ours-8b", "--gpus", "8", "--catalog", "ours")
    assert refused.exit_code == 2
    assert "ours-8b.source" in refused.stderr
    entry["source"] = "our own runs"
    (family / "ours.yaml").write_text(yaml.safe_dump({"entries": {"ours-8b": entry}}))
    assert "ours-8b" in succeed("recipes", "list", "--search", "ours", "--catalog", "ours")
    succeed("plan", "--recipe", "ours-8b", "--gpus", "8", "--catalog", "ours")
    changed = succeed("args", "--recipe", "ours-8b", "--gpus", "8", "--catalog", "ours")
    assert re.search(r"--lr\s+(2e-4|2e-04|0\.0002)", changed)


def test_a_built_in_family_is_a_template_that_can_be_copied(empty_folder: Path) -> None:
    folder = empty_folder / "copy"
    folder.mkdir()
    shutil.copy(DATA / "mixtral.yaml", folder / "copied.yaml")
    text = (folder / "copied.yaml").read_text().replace("mixtral-8x7b:", "copied-8x7b:", 1)
    content = yaml.safe_load(text)
    content["entries"] = {"copied-8x7b": content["entries"]["copied-8x7b"] | {"aliases": []}}
    (folder / "copied.yaml").write_text(yaml.safe_dump(content))
    succeed("plan", "--recipe", "copied-8x7b", "--gpus", "64", "--catalog", "copy")

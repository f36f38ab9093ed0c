"""The commands, the webhook and the operator give one verdict on a recipe, in the same words."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from megatron_operator import catalog
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.cli.main import cli
from megatron_operator.lifecycle.desired import Config
from megatron_operator.lifecycle.review import review

PLATFORM = Path(__file__).parents[3] / "examples" / "platforms" / "infiniband-sriov.yaml"
H100 = {"type": "h100-sxm", "count": 8}
SPECS: dict[str, dict[str, Any]] = {
    "engine that the operator does not start": {"recipe": "nemotron-h-8b-sft", "accelerator": H100},
    "reserved variable": {"recipe": "llama3-8b", "accelerator": H100, "env": {"RANK": "1"}},
    "too little memory": {"recipe": "llama3-405b", "accelerator": H100},
    "flag that nothing reads": {
        "recipe": "llama3-8b",
        "accelerator": H100,
        "megatronArgs": {"fim-data": True},
    },
    "accepted": {"recipe": "llama3-8b", "accelerator": H100},
}


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def texts(document: dict[str, Any]) -> list[str]:
    return [f"{error['field']}: {error['message']}; {error['fix']}" for error in document["errors"]]


@pytest.fixture(params=SPECS.values(), ids=SPECS.keys())
def resource(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "apiVersion": "megatron.training/v1beta1",
        "kind": "MegatronRecipe",
        "metadata": {"name": "mine"},
        "spec": request.param | {"data": {"mockData": True}},
    }


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_command_has_the_words_of_the_webhook(
    resource: dict[str, Any], command: str, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(resource))
    config = Config(default_platform(), catalog.load())
    body = resource | {"metadata": {"name": "mine", "namespace": "default"}}
    refused = list(map(str, review({"object": body, "namespace": "default"}, config).errors))
    as_json, as_text = megatron(command, "-f", str(file), "-o", "json"), megatron(command, "-f", str(file))
    document = json.loads(as_json.stdout)
    assert texts(document) == refused
    assert document["runnable"] is (not refused)
    assert as_text.stderr.splitlines() == refused
    assert as_json.exit_code == as_text.exit_code == (2 if refused else 0)


def test_a_plan_that_cannot_be_started_is_still_shown() -> None:
    recipe = "nemotron-h-8b-sft"
    printed = megatron("plan", "--recipe", recipe, "--gpus", "8", "--accelerator", "h100-sxm")
    assert "layout      TP" in printed.stdout
    assert f"spec.recipe: {recipe} is run by Megatron-Bridge" in printed.stderr


LLAMA = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")


@pytest.mark.parametrize("command", ["validate", "plan", "args", "render", "diff"])
def test_a_second_recipe_is_not_taken_in_silence(command: str) -> None:
    result = megatron(command, "-f", "one.yaml", "-f", "two.yaml")
    assert result.exit_code == 2
    assert "is given 2 times; give it once" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("plan", *LLAMA),
        ("recommend", "--gpus", "8"),
        ("recipes", "list"),
        ("recipes", "show", "llama3-8b"),
    ],
)
def test_a_catalog_that_does_not_exist_is_an_error(words: tuple[str, ...]) -> None:
    result = megatron(*words, "--catalog", "/nowhere/recipes")
    assert result.exit_code == 2
    assert "Directory '/nowhere/recipes' does not exist" in result.stderr


def test_a_file_of_the_catalog_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("entries: [one]\n")
    result = megatron("validate", *LLAMA, "--catalog", str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: mine.yaml: entries: ")


@pytest.mark.parametrize("name", ["H100", "h100", "H100-SXM", "h100-sxm"])
def test_an_accelerator_is_found_in_any_case(name: str) -> None:
    result = megatron("validate", "--recipe", "llama3-8b", "--gpus", "8", "--accelerator", name)
    assert "valid on 8 x h100-sxm" in result.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.fp8Recipe=mxfp8", "mxfp8: h100-sxm does not support MXFP8 matrix products"),
        ("megatronArgs.sft=true", "is read by Megatron's pretrain_gpt.py alone"),
        ("megatronArgs.perform-rl-step=true", "requires the package megatron.rl"),
        ("megatronArgs.fim-data=true", "is read by nothing in Megatron's training loop"),
        ("data.tokenizer.tokenizerType=HuggingfaceTokenizer", "did you mean HuggingFaceTokenizer?"),
        ("data.tokenizer.tokenizerType=SFTTokenizer", "belongs to a program that the trainer does not run"),
    ],
)
def test_what_would_be_ignored_is_refused(setting: str, message: str) -> None:
    precision = ("--set", "training.fp8Format=hybrid")
    result = megatron("validate", *LLAMA, *precision, "--set", setting)
    assert result.exit_code == 2
    assert message in result.stderr


def test_recommend_exits_with_2_where_the_model_does_not_fit_and_prints_what_would() -> None:
    words = ("recommend", "--model", "deepseek-ai/DeepSeek-V3", "--gpus", "64", "--accelerator", "h100-sxm")
    as_text, as_json = megatron(*words), megatron(*words, "-o", "json")
    assert (as_text.exit_code, as_json.exit_code) == (2, 2)
    assert as_text.stdout.startswith("deepseek-v3 does not fit on 64 GPUs\n")
    assert "256 x h100-sxm fits: that layout is published" in as_text.stdout
    assert json.loads(as_json.stdout)[0]["runnable"] is False


def test_recommend_and_plan_agree_on_a_raised_batch() -> None:
    words = ("--model", "flux1-12b", "--gpus", "256", "-o", "json")
    [best, *_] = json.loads(megatron("recommend", *words).stdout)
    assert best["next"].endswith("--set training.globalBatchSize=256")
    assert megatron(*best["next"].split()[1:]).exit_code == 0


def test_the_command_that_follows_a_recommendation_reads_the_same_platform_and_catalog(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my recipes"
    folder.mkdir()
    entry = {"extends": "llama3-8b", "description": "mine", "source": "mine"}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"family": "mine", "entries": {"my-model": entry}}))
    given = ("--platform", str(PLATFORM), "--catalog", str(folder))
    words = ("--model", "my-model", "--gpus", "8", *given)
    printed = megatron("recommend", *words).stdout
    best = json.loads(megatron("recommend", *words, "-o", "json").stdout)[0]
    [following] = re.findall(r"^Next: megatron (.*)$", printed, re.MULTILINE)
    assert best["next"] == f"megatron {following}"
    assert shlex.split(following)[-4:] == list(given)
    assert megatron(*shlex.split(following)).exit_code == 0


def test_validate_warns_of_memory_and_of_the_platforms_checkpoint_volume() -> None:
    weights = ("--set", "init.from.huggingFace.path=/data/model", "--set", "data.volume.claimName=models")
    tight = ("validate", "--recipe", "qwen3-vl-30b-a3b-sft", "--gpus", "8", "--accelerator", "h100-sxm")
    assert "warning: memory may not suffice: 100.0 GiB estimated" in megatron(*tight, *weights).stdout
    full = ("validate", "--recipe", "llama3-70b", "--accelerator", "h100-sxm", "--gpus")
    assert "warning: memory is tight: 78.4 of 79.1 GiB estimated" in megatron(*full, "16").stdout
    assert "memory is tight" not in megatron(*full, "32").stdout
    large = ("validate", "--recipe", "llama3.1-405b", "--gpus", "256", "--accelerator", "h100-sxm")
    warning = "checkpoint.volume.size of the platform: 1Ti has no room for two checkpoints of 5292.1 GiB"
    assert f"warning: {warning}" in megatron(*large).stdout
    [[found]] = json.loads(megatron(*large, "-o", "json").stdout)["warnings"].values()
    assert found.startswith(warning)


def test_validate_plan_and_recommend_warn_of_a_published_layout_that_may_not_fit() -> None:
    name, words = "qwen3-omni-30b-a3b-sft", ("--gpus", "8", "--accelerator", "h100-sxm", "-o", "json")
    weights = ("--set", "init.from.huggingFace.path=/data/model", "--set", "data.volume.claimName=models")
    valid = megatron("validate", "--recipe", name, *words, *weights)
    planned = json.loads(megatron("plan", "--recipe", name, *words, *weights).stdout)
    [best] = json.loads(megatron("recommend", "--model", name, "--mode", "sft", *words).stdout)
    assert valid.exit_code == 0
    [warning] = json.loads(valid.stdout)["warnings"][name]
    assert "the published layout is used, but as estimated TP 1, PP 1, CP 1, EP 8, DP 8 needs" in warning
    assert planned["memoryPerGpu"] is None
    assert warning in planned["notes"]
    assert warning in best["reasons"]


def test_block_scaled_fp8_is_refused_on_ada_and_proposed_on_hopper_alone() -> None:
    def refusal(accelerator: str, scaling: str) -> str:
        words = ("--recipe", "llama3-8b", "--gpus", "16", "--accelerator", accelerator)
        fp8 = ("--set", "training.fp8Format=e4m3", "--set", f"training.fp8Recipe={scaling}")
        return megatron("validate", *words, *fp8).stderr

    assert "set tensorwise, or use Hopper or later" in refusal("l40s", "blockwise")
    assert "set tensorwise, or use Blackwell or later" in refusal("l40s", "mxfp8")
    assert "set tensorwise or blockwise, or use Blackwell or later" in refusal("h100-sxm", "mxfp8")
    assert refusal("h100-sxm", "blockwise") == refusal("l40s", "tensorwise") == ""


def test_sizes_that_divide_the_experts_and_not_the_accelerators_are_not_proposed() -> None:
    words = ("--recipe", "qwen3-30b-a3b", "--gpus", "24", "--accelerator", "h20")
    result = megatron("validate", *words, "--set", "parallelism.expertModelParallelSize=6")
    assert "EP 6 does not divide numExperts 128; set one of 1, 2, 4, 8\n" in result.stderr


def test_the_only_size_that_is_valid_is_not_one_of_several() -> None:
    pod = ("--gpus", "9", "--accelerator", "h100-sxm", "--set", "accelerator.perNode=3")
    result = megatron(
        "validate", "--recipe", "llama3-8b", *pod, "--set", "parallelism.tensorModelParallelSize=9"
    )
    assert (
        "9 does not divide the 3 accelerators of a pod: a TP group would span nodes; set 1\n" in result.stderr
    )


def test_a_recipe_for_recommend_does_not_fit_only_where_it_lacks_memory() -> None:
    words = ("recommend", "--model", "llama3-8b", "--gpus", "12", "--accelerator", "h100-sxm")
    result = megatron(*words)
    assert result.stdout.startswith("llama3-8b cannot run on 12 GPUs\n")
    assert "does not fit" not in result.stdout


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_command_names_an_index_that_is_left_to_rank_0(command: str, tmp_path: Path) -> None:
    recipe = {
        "apiVersion": "megatron.training/v1beta1",
        "kind": "MegatronRecipe",
        "metadata": {"name": "mine"},
        "spec": {
            "recipe": "mistral-7b",
            "accelerator": {"type": "h100-sxm", "count": 64},
            "data": {
                "volume": {"claimName": "corpus"},
                "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
                "blend": [{"path": "web_text_document"}],
            },
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    result = megatron(command, "-f", str(path))
    assert result.exit_code == 0, result.output
    assert " ".join(result.output.split()).count("samples is left to rank 0") == 1

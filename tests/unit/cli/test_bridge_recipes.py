"""Commands on recipes that Megatron-Bridge runs."""

import json
import re

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

EIGHT = ("--gpus", "8", "--accelerator", "h100-sxm")


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_a_plan_of_a_function_without_sizes_names_those_that_are_missing() -> None:
    done = megatron("plan", "--recipe", "vanilla-gpt", *EIGHT, "-o", "json")
    assert done.exit_code == 2
    missing = [error["field"] for error in json.loads(done.stdout)["errors"]]
    sizes = ("numLayers", "hiddenSize", "numAttentionHeads", "vocabSize")
    assert missing == [f"spec.model.{leaf}" for leaf in sizes]


@pytest.mark.parametrize("recipe", ["qwen3.5-vl-9b-sft", "qwen35_vl_9b_sft_config"])
def test_a_plan_names_the_engine_that_runs_it(recipe: str) -> None:
    done = megatron("plan", "--recipe", recipe, *EIGHT)
    assert "on 8 x h100-sxm" in done.stdout
    assert "run by Megatron-Bridge" in done.stdout
    assert "untested on hardware" in done.stdout


def test_args_prints_the_command_of_megatron_bridge() -> None:
    words = json.loads(megatron("args", "--recipe", "qwen3.5-vl-9b-sft", *EIGHT, "-o", "json").stdout)
    assert words[0] == "torchrun"
    assert words[words.index("--recipe") + 1] == "qwen35_vl_9b_sft_4gpu_h100_bf16_config"
    assert words[words.index("--mode") + 1] == "sft"


def test_render_reports_that_there_are_no_objects() -> None:
    done = megatron("render", "--recipe", "nemotron3-nano-omni-30b-a3b-sft", *EIGHT, "-o", "json")
    assert done.exit_code == 2
    (error,) = json.loads(done.stdout)["errors"]
    assert error["field"] == "spec.recipe"
    assert (
        "not started: on GPUs the trainer's image lacks kernels that it needs: mamba-ssm" in error["message"]
    )


def test_the_list_has_engine_mode_and_function() -> None:
    listed = {entry["name"]: entry for entry in json.loads(megatron("recipes", "list", "-o", "json").stdout)}
    entry = listed["flux1-12b-sft"]
    assert (entry["engine"], entry["modes"]) == ("bridge", ["sft"])
    assert entry["layouts"][0]["function"] == "flux_12b_sft_2gpu_h100_bf16_config"


def test_a_recipe_is_shown_by_the_name_of_its_function() -> None:
    shown = json.loads(
        megatron("recipes", "show", "llama3_70b_pretrain_64gpu_gb200_fp8mx_config", "-o", "json").stdout
    )
    assert shown["name"] == "llama3-70b"
    assert "llama3_70b_pretrain_64gpu_gb200_fp8mx_config" in {each["function"] for each in shown["functions"]}


STARTED = (
    *("--recipe", "llama3.1-8b-lora", "--gpus", "1", "--accelerator", "h100-sxm"),
    *("--set", "init.modelFolder=/data/model", "--set", "init.from.megatron.path=/data/weights"),
    *("--set", "data.volume.claimName=corpus"),
)


def test_a_fine_tuning_recipe_of_llama_is_runnable_and_rendered() -> None:
    verdict = json.loads(megatron("validate", *STARTED, "-o", "json").stdout)
    plan = json.loads(megatron("plan", *STARTED, "-o", "json").stdout)
    rendered = megatron("render", *STARTED)
    assert verdict["runnable"] is plan["runnable"] is True
    assert "llama31_8b_peft_1gpu_h100_bf16_config" in rendered.stdout
    assert "run by Megatron-Bridge" in megatron("validate", *STARTED).stdout


def test_the_jobs_that_convert_weights_are_shown_without_a_cluster() -> None:
    converted = (
        *("--recipe", "llama3.1-8b-lora", "--gpus", "1", "--accelerator", "h100-sxm"),
        *("--set", "init.from.huggingFace.path=/data/llama", "--set", "data.volume.claimName=models"),
        *("--set", "export.huggingFace.path=/data/out", "--set", "export.merge=true"),
    )
    for command in ("plan", "validate"):
        shown = megatron(command, *converted).stdout
        assert "/data/llama to /data/llama-megatron, by Job llama3-1-8b-lora-39600-import" in shown
        assert "/checkpoints/llama3.1-8b-lora to /data/out, by Job llama3-1-8b-lora-39600-export" in shown
    both = [*converted, "--set", "export.when=[best, end]", "--set", "training.evalInterval=100"]
    assert re.search(
        r"export best +/checkpoints/\S+ to /data/out/best, by Job \S+-export-best",
        megatron("plan", *both).stdout,
    )
    kinds = [
        each["kind"] for each in json.loads(megatron("render", *converted, "-o", "json").stdout)["items"]
    ]
    assert kinds == ["PersistentVolumeClaim", "Job", "PyTorchJob", "Job"]


def test_a_difference_between_recipes_of_bridge_is_that_of_their_overrides() -> None:
    done = megatron("diff", *STARTED, "--set", "training.lr=0.5", "-o", "json")
    changed = {
        change["flag"]: (change["before"], change["after"]) for change in json.loads(done.stdout)["flags"]
    }
    assert done.exit_code == 1
    assert changed["optimizer.lr"] == ("0.0001", "0.5")
    assert "function" not in changed


def test_recipes_of_all_other_families_are_not_runnable() -> None:
    runnable = set()
    for entry in json.loads(megatron("recipes", "list", "--engine", "bridge", "-o", "json").stdout):
        if entry["family"] != "llama3" and entry["name"].endswith("-lora"):
            first = entry["layouts"][0]
            words = ("--gpus", str(first["count"]), "--accelerator", first["accelerators"][0])
            done = megatron("validate", "--recipe", entry["name"], *words, "-o", "json")
            runnable |= {entry["name"]} if json.loads(done.stdout)["runnable"] else set()
    assert runnable == set()

"""Commands on recipes that Megatron-Bridge runs."""

import json

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

EIGHT = ("--gpus", "8", "--accelerator", "h100-sxm")


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_values_that_are_not_modelled_are_null_in_a_plan() -> None:
    done = megatron("plan", "--recipe", "qwen3-vl-8b-sft", *EIGHT, "-o", "json")
    plan = json.loads(done.stdout)
    assert plan["worldSize"] == 8
    assert plan["alternatives"] == []
    unknown = ("parameters", "activeParameters", "flopsPerToken", "memoryPerGpu", "expected")
    assert [plan[field] for field in unknown] == [None] * len(unknown)


@pytest.mark.parametrize("recipe", ["qwen3-vl-8b-sft", "qwen3_vl_8b_sft_config"])
def test_a_plan_names_the_engine_that_runs_it(recipe: str) -> None:
    done = megatron("plan", "--recipe", recipe, *EIGHT)
    assert "on 8 x h100-sxm" in done.stdout
    assert "run by Megatron-Bridge" in done.stdout
    assert "untested on hardware" in done.stdout


def test_args_prints_the_command_of_megatron_bridge() -> None:
    words = json.loads(megatron("args", "--recipe", "qwen3-vl-8b-sft", *EIGHT, "-o", "json").stdout)
    assert words[0] == "torchrun"
    assert words[words.index("--recipe") + 1] == "qwen3_vl_8b_sft_2gpu_h100_bf16_config"
    assert words[words.index("--mode") + 1] == "sft"


def test_render_reports_that_there_are_no_objects() -> None:
    done = megatron("render", "--recipe", "qwen3-vl-8b-sft", *EIGHT, "-o", "json")
    assert done.exit_code == 2
    (error,) = json.loads(done.stdout)["errors"]
    assert error["field"] == "spec.recipe"
    assert "does not start yet" in error["message"]


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

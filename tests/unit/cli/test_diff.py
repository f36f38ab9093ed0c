"""`megatron diff` prices what a function has and the plan has not, and the recipe's own settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

QWEN = ("--recipe", "qwen3_235b_a22b_pretrain_256gpu_gb200_fp8mx_config", "--accelerator", "gb200")
LLAMA = ("--recipe", "llama3-8b", "--gpus", "64", "--accelerator", "h100-sxm")


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def diff(*words: str) -> dict[str, Any]:
    found = json.loads(megatron("diff", *words, "-o", "json").stdout)
    assert isinstance(found, dict)
    return found


def planned(*words: str) -> dict[str, float]:
    """The planner's own estimate, by the field names of `diff`."""
    expected = json.loads(megatron("plan", *words, "-o", "json").stdout)["expected"]
    return {name: expected[name] for name in ("stepSeconds", "tokensPerSecondPerGpu")}


def speed(of: dict[str, Any]) -> dict[str, float]:
    return {name: of["expected"][name] for name in ("stepSeconds", "tokensPerSecondPerGpu")}


def test_each_setting_that_is_left_out_has_its_cost_and_they_lead_to_the_plan() -> None:
    found = diff(*QWEN, "--gpus", "256")
    function, published = found["function"], found["published"]
    assert function["expected"]["tokensPerSecondPerGpu"] == pytest.approx(7280, rel=0.05)  # measured
    left_out = function["leftOut"]
    assert [each["setting"] for each in left_out] == [
        "CUDA graphs of whole iterations",
        "buffers of a fixed size for the experts",
        "the dispatcher flex",
        "attention in FP8",
    ]
    priced = [each for each in left_out if each["expected"]]
    assert left_out[-1]["expected"] is None
    assert speed(priced[-1]) == pytest.approx(planned(*QWEN, "--gpus", "256"))
    assert speed(published) == speed(found["recipe"]) == pytest.approx(speed(priced[-1]))
    product = 1.0
    for each in priced:
        product *= 1 + each["expected"]["speedChange"]
    assert product == pytest.approx(1 + published["expected"]["speedChange"])
    assert product < 0.85


def test_the_cost_is_that_of_the_plans_note() -> None:
    [note] = [
        note
        for note in json.loads(megatron("plan", *QWEN, "--gpus", "256", "-o", "json").stdout)["notes"]
        if "longer" in note
    ]
    found = diff(*QWEN, "--gpus", "256")
    longer = found["published"]["expected"]["stepSeconds"] / found["function"]["expected"]["stepSeconds"] - 1
    assert f"a step {longer:.1%} longer" in note


def test_a_layout_that_fits_only_with_fsdp_is_priced_against_the_planned_one() -> None:
    words = (
        "--recipe",
        "llama3_70b_pretrain_64gpu_gb300_bf16_config",
        "--accelerator",
        "gb300",
        "--gpus",
        "64",
    )
    function = diff(*words)["function"]
    [cost] = function["leftOut"]
    assert cost["setting"] == "sharding by FSDP and activations in host memory"
    assert "TP 1, PP 1, CP 1 does not fit: planned with TP 2, PP 1, CP 2" in cost["reason"]
    assert -0.3 < cost["expected"]["speedChange"] < 0
    assert {"field": "parallelism.tensorModelParallelSize", "published": 1, "planned": 2} in function[
        "changed"
    ]


def test_on_another_count_every_setting_that_is_dropped_is_named_without_a_cost() -> None:
    found = diff(*QWEN, "--gpus", "512")["function"]
    assert found["expected"] is None
    assert all(each["expected"] is None for each in found["leftOut"])
    assert len(found["leftOut"]) == 4
    changed = {each["field"]: (each["published"], each["planned"]) for each in found["changed"]}
    assert changed["megatronArgs.grad-reduce-in-bf16"] == (True, None)
    assert "parallelism.pipelineModelParallelSize" not in changed, "published sizes are kept where they suit"


def test_a_function_that_runs_as_published_differs_in_nothing() -> None:
    function = "llama3_8b_pretrain_8gpu_b200_fp8cs_config"
    same = megatron("diff", "--recipe", function, "--gpus", "8", "--accelerator", "b200")
    assert (same.exit_code, same.stdout) == (0, "")


def test_each_override_is_priced_alone_and_all_of_them_together() -> None:
    one, two = ("--set", "parallelism.tensorModelParallelSize=4"), ("--set", "training.globalBatchSize=256")
    found = diff(*LLAMA, *one, *two, "--set", "training.lr=1e-4")
    fields = {each["field"]: each for each in found["overrides"]}
    assert set(fields) == {"parallelism.tensorModelParallelSize", "training.globalBatchSize", "training.lr"}
    assert speed(fields["parallelism.tensorModelParallelSize"]) == planned(*LLAMA, *one)
    assert speed(fields["training.globalBatchSize"]) == planned(*LLAMA, *two)
    assert fields["training.lr"]["expected"]["speedChange"] == 0
    assert speed(found["recipe"]) == planned(*LLAMA, *one, *two)
    before, after = found["published"]["expected"], found["recipe"]["expected"]
    share = after["tokensPerSecondPerGpu"] / before["tokensPerSecondPerGpu"] - 1
    assert after["speedChange"] == pytest.approx(share)


def test_a_setting_with_the_published_value_is_no_override() -> None:
    assert diff(*LLAMA, "--set", "training.seqLength=8192")["overrides"] == []


def test_an_override_that_is_refused_alone_names_why() -> None:
    """64 ranks need 192 samples for micro batches of 3; the published batch has 128."""
    words = ("--set", "training.microBatchSize=3", "--set", "training.globalBatchSize=192")
    found = diff(*LLAMA, *words)
    [refused] = [each for each in found["overrides"] if each["error"]]
    assert refused["field"] == "training.microBatchSize"
    assert "128 is not divisible by microBatchSize 3" in refused["error"]
    assert refused["expected"] is None
    printed = megatron("diff", *LLAMA, *words).stdout
    assert "with only training.microBatchSize 3" in printed
    assert "refused, spec.training.globalBatchSize" in printed


def test_people_get_a_table_that_ends_with_this_recipe() -> None:
    printed = megatron("diff", *QWEN, "--gpus", "256", "--set", "training.globalBatchSize=4096")
    assert printed.exit_code == 1
    lines = [line for line in printed.stdout.splitlines() if " s  " in line]
    assert [line.split("  ")[-1].split(",")[0].strip() for line in lines] == [
        "the function with all its settings",
        "without CUDA graphs of whole iterations",
        "without buffers of a fixed size for the experts",
        "without the dispatcher flex",
        "the recipe as published",
        "with only training.globalBatchSize 4096 instead of 8192",
        "this recipe",
    ]


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("pytorchjob", "PyTorchJob"), ("jobset", "JobSet"), ("trainjob", "TrainingRuntime")],
)
def test_a_running_job_has_flags_only(tmp_path: Path, backend: str, kind: str) -> None:
    platform, running = tmp_path / "platform.yaml", tmp_path / "job.yaml"
    profile = "{h100: {hardware: h100-sxm, perNode: 8}}"
    platform.write_text(f"{{jobBackend: {backend}, image: trainer, accelerators: {profile}}}")
    job = megatron("render", *LLAMA, "--platform", str(platform)).stdout
    running.write_text(next(part for part in job.split("\n---\n") if f"\nkind: {kind}\n" in f"\n{part}\n"))
    found = diff(*LLAMA, "--running", str(running))
    assert found == {"flags": [], "function": None, "published": None, "overrides": None, "recipe": None}

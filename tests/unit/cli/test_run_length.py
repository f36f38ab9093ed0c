"""Numbers of a whole run that people misread: its length, its cost, a batch that is too small."""

import json
import re

import pytest
from click.testing import CliRunner, Result
from megatron_operator.cli.main import cli

LLAMA = ("--recipe", "llama3-70b", "--gpus", "64", "--accelerator", "h100-sxm")


def megatron(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def plan(*words: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(megatron("plan", *words, "-o", "json").stdout)
    return found


def test_the_second_line_has_the_length_of_the_run_and_the_count_for_a_month() -> None:
    found = plan(*LLAMA)
    days = found["runSeconds"] / 86400
    needed = int(-(-days * 8 // 30) * 8)
    line = megatron("plan", *LLAMA).stdout.splitlines()[1]
    assert f"whole run   {days / 365.25:.1f} years without interruptions" in line
    sharing = found["tensorModelParallelSize"] * found["pipelineModelParallelSize"]
    sharing *= found["contextParallelSize"]

    def takes(count: int) -> bool:
        return (
            count % sharing == 0
            and found["globalBatchSize"] * sharing % (count * found["microBatchSize"]) == 0
        )

    count = next((count for count in range(needed, 2 * needed, 8) if takes(count)), needed)
    assert f"for 30 days take about {count:,.0f} GPUs" in line


@pytest.mark.parametrize("recipe", ["llama3-70b", "llama3-8b", "mixtral-8x22b"])
def test_the_count_for_a_month_is_one_that_the_batch_takes(recipe: str) -> None:
    words = (
        "--recipe",
        recipe,
        "--gpus",
        "64",
        "--accelerator",
        "h100-sxm",
        "--set",
        "training.trainTokens=15T",
    )
    words += ("--set", "training.globalBatchSize=8192")
    line = megatron("plan", *words).stdout.splitlines()[1]
    count = line.partition("take about ")[2].split()[0].replace(",", "")
    planned = megatron("plan", *words[:3], count, *words[4:], "-o", "json")
    assert planned.exit_code == 0, planned.stdout


@pytest.mark.parametrize(
    ("recipe", "gpus", "tokens"),
    [
        ("llama3-8b-128k", "32", "15T"),
        ("llama3-8b", "4", "15T"),
        ("deepseek-v3", "1024", "60T"),
        ("mixtral-8x7b", "24", "15T"),
        ("qwen3-30b-a3b", "16", "15T"),
        ("kimi-k2", "512", "30T"),
    ],
)
def test_the_count_and_the_batch_for_a_month_are_planned(recipe: str, gpus: str, tokens: str) -> None:
    words = ("--recipe", recipe, "--accelerator", "h100-sxm", "--set", f"training.trainTokens={tokens}")
    line = megatron("plan", *words, "--gpus", gpus).stdout.splitlines()[1].replace(",", "")
    named = re.search(r"take about (\d+) GPUs at this speed per GPU(?: and globalBatchSize (\d+))?", line)
    assert named is not None
    count, batch = named.groups()
    if batch is not None:
        words += ("--set", f"training.globalBatchSize={batch}")
    planned = megatron("plan", *words, "--gpus", count, "-o", "json")
    assert planned.exit_code == 0, planned.stderr


def test_the_recommendation_for_a_month_is_planned() -> None:
    printed = " ".join(
        megatron("recommend", "--model", "8b", "--gpus", "32", "--seq-length", "131072").stdout.split()
    )
    named = re.search(r"take about ([\d,]+) GPUs .* GPU, and globalBatchSize ([\d,]+)", printed)
    recipe = re.search(r"--recipe (\S+)", printed)
    assert named is not None
    assert recipe is not None
    count, batch = (each.replace(",", "") for each in named.groups())
    words = ("--recipe", recipe[1], "--gpus", count, "--set", "training.seqLength=131072")
    assert megatron("plan", *words, "--set", f"training.globalBatchSize={batch}").exit_code == 0


def test_a_larger_batch_for_a_month_trains_as_many_tokens_in_fewer_iterations() -> None:
    words = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")
    asked = ("--set", "training.trainIters=10000000", "--set", "training.globalBatchSize=32")
    line = megatron("plan", *words, *asked).stdout.splitlines()[1].replace(",", "")
    named = re.search(r"take about (\d+) GPUs .* globalBatchSize (\d+) with trainIters (\d+)", line)
    assert named is not None
    count, batch, fewer = map(int, named.groups())
    assert batch > 32
    assert fewer == -(-10_000_000 * 32 // batch)
    settings = ("--set", f"training.trainIters={fewer}", "--set", f"training.globalBatchSize={batch}")
    month = plan(*words[:3], str(count), *words[4:6], *settings)["runSeconds"]
    assert 20 * 86400 < month < 40 * 86400


def test_a_run_of_hours_has_no_other_count() -> None:
    line = megatron("plan", "--recipe", "llama3-8b", "--gpus", "2048").stdout.splitlines()[1]
    assert "hours without interruptions" in line
    assert "30 days" not in line


def test_a_price_gives_the_cost_of_the_run() -> None:
    found = plan(*LLAMA, "--price", "2.5")
    hours = found["runSeconds"] * 64 / 3600
    assert found["cost"] == pytest.approx(2.5 * hours)
    assert f"cost        {2.5 * hours:,.0f}: {hours:,.0f} GPU hours at 2.5" in (
        megatron("plan", *LLAMA, "--price", "2.5").stdout
    )


def test_the_cost_of_a_short_run_is_not_rounded_to_nothing() -> None:
    of = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")
    of += ("--set", "training.trainIters=5", "--set", "training.lrWarmupIters=0")
    found = plan(*of, "--price", "2.5")
    line = re.search(r"cost +([\d.]+): ([\d.]+) GPU hours", megatron("plan", *of, "--price", "2.5").stdout)
    assert line is not None
    assert float(line[1]) == pytest.approx(found["cost"], rel=0.01)
    assert float(line[2]) * 2.5 == pytest.approx(found["cost"], rel=0.01)


def test_a_run_with_a_batch_ramp_up_has_the_length_of_its_samples_at_the_largest_batch() -> None:
    of = ("--recipe", "llama3-8b", "--gpus", "8", "--accelerator", "h100-sxm")
    words = (*of, "--set", "training.trainTokens=20B", "--price", "2")
    ramp = plan(*words, "--set", "training.stepBatchSizeSchedule=0:64 5B:128")
    constant = plan(*words, "--set", "training.globalBatchSize=128")
    assert ramp["trainIters"] > 1.2 * constant["trainIters"]
    assert ramp["runSeconds"] == pytest.approx(constant["runSeconds"], rel=0.02)
    assert ramp["cost"] == pytest.approx(constant["cost"], rel=0.02)


def test_without_a_price_there_is_no_cost() -> None:
    assert "cost" not in plan(*LLAMA)


def test_a_batch_that_is_too_small_for_the_count_is_named() -> None:
    words = ("plan", "--recipe", "llama3-8b", "--gpus")
    assert "globalBatchSize 128 is too small for 2,048 GPUs: at most 128 ranks" in (
        megatron(*words, "2048").stdout
    )
    assert "too small" not in megatron(*words, "64").stdout


def test_a_step_of_half_the_time_is_twice_as_fast() -> None:
    found = json.loads(megatron("plan", *LLAMA, "-o", "json").stdout)
    faster = [each for each in found["alternatives"] if "faster" in each["reason"]]
    assert faster
    for each in faster:
        ratio = found["expected"]["stepSeconds"] / each["expected"]["stepSeconds"]
        assert each["reason"].startswith(f"{ratio - 1:.0%} faster")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--recipe", "llama3-8b"), "--gpus: is required with --recipe; give the number"),
        (("plan", "--recipe", "llama3-8b", "--gpus", "0"), "'--gpus': 0 is below 1; set at least 1"),
        (("recommend", "--gpus", "1000001"), "'--gpus': 1000001 is above 1000000; set at most 1000000"),
        (("explain", ""), "FIELD: is empty; name a field"),
        (("init", "70b", "--gpus", "8"), "70b: no recipe that the operator can start fits on 8 GPUs"),
    ],
)
def test_an_error_names_the_option_and_the_limit_as_for_a_field(words: tuple[str, ...], message: str) -> None:
    done = megatron(*words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_named_model_is_not_swapped_in_a_hint() -> None:
    done = megatron("recommend", "--model", "qwen3-30b-a3b", "--gpus", "2", "--mode", "sft")
    assert "does not fit on 2 GPUs" in done.stdout
    assert "qwen3-32b-lora" not in done.stdout


def test_a_runner_up_that_does_not_fit_has_no_raw_refusal() -> None:
    done = megatron("recommend", "--model", "qwen3-32b", "--gpus", "2", "--mode", "sft")
    table = done.stdout.partition("RUNNERS-UP")[2]
    assert "does not fit: " in table
    assert "spec." not in table
    assert "; use" not in table


def test_a_first_recipe_remarks_on_an_unusual_count() -> None:
    assert "# No layout is published for 3 x h100-sxm" in megatron("init", "--gpus", "3").stdout
    assert "# No layout is published for" in megatron("init", "mixtral-8x7b", "--gpus", "24").stdout
    assert "published" not in megatron("init", "llama3-8b", "--gpus", "64").stdout.splitlines()[1]


def test_a_size_starts_with_a_recipe_that_the_operator_can_start() -> None:
    written = megatron("init", "56b", "--gpus", "64")
    assert written.exit_code == 0, written.stderr
    assert "nemotron-h" not in written.stdout

"""`megatron plan` proposes settings with the gain that the same command then shows."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from megatron_operator.cli.main import cli

SMALL = ("--recipe", "llama3-70b", "--gpus", "24", "--accelerator", "h100-sxm")


def plan(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ("plan", *words, "-o", "json"), catch_exceptions=False)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_proposal_gains_what_it_promises() -> None:
    before = plan(*SMALL)
    gains = [each["speedChange"] for each in before["proposals"]]
    assert gains == sorted(gains, reverse=True)
    assert len(gains) >= 2
    for each in before["proposals"]:
        sets = [f"--set={path}={json.dumps(value)}" for path, value in each["settings"].items()]
        speed = plan(*SMALL, *sets)["expected"]["tokensPerSecondPerGpu"]
        assert speed == pytest.approx(before["expected"]["tokensPerSecondPerGpu"] * (1 + each["speedChange"]))


def test_a_layout_that_beats_the_published_one_is_proposed_with_all_that_sets_it() -> None:
    published = ("--recipe", "qwen3-32b", "--gpus", "16", "--accelerator", "h100-sxm")
    before = plan(*published)
    (layout,) = [each for each in before["proposals"] if each["caveat"] == "not the published layout"]
    assert layout["speedChange"] > 0.3
    sets = [f"--set={path}={json.dumps(value)}" for path, value in layout["settings"].items()]
    after = plan(*published, *sets)
    speed = before["expected"]["tokensPerSecondPerGpu"] * (1 + layout["speedChange"])
    assert after["expected"]["tokensPerSecondPerGpu"] == pytest.approx(speed)
    assert layout["layout"] == {name: after[name] for name in layout["layout"]}
    assert not any(each["caveat"] == "not the published layout" for each in plan(*SMALL)["proposals"])


@pytest.mark.parametrize(("batch", "near"), [(500, 512), (127, 128)])
def test_a_batch_that_few_layouts_divide_has_a_faster_one_beside_it(batch: int, near: int) -> None:
    run = ("--recipe", "llama3-8b", "--gpus", "64", "--accelerator", "h100-sxm")
    before = plan(*run, f"--set=training.globalBatchSize={batch}")
    (other,) = [each for each in before["proposals"] if "training.globalBatchSize" in each["settings"]]
    assert other["settings"] == {"training.globalBatchSize": near}
    assert other["changesNumerics"]
    assert other["speedChange"] > 0.2
    after = plan(*run, f"--set=training.globalBatchSize={near}")
    assert after["globalBatchSize"] == near
    assert not any("training.globalBatchSize" in each["settings"] for each in after["proposals"])


def test_a_setting_that_was_taken_is_not_proposed_again() -> None:
    again = plan(*SMALL, "--set", "parallelism.tpCommOverlap=true")["proposals"]
    assert not any("parallelism.tpCommOverlap" in each["settings"] for each in again)


def test_what_megatron_refuses_with_recomputed_experts_is_not_proposed() -> None:
    run = ("--recipe", "qwen3-30b-a3b", "--gpus", "32", "--accelerator", "h100-sxm")

    def proposed(modules: str) -> set[str]:
        sets = ("parallelism.recomputeGranularity=selective", f"parallelism.recomputeModules=[{modules}]")
        found = plan(*run, *(f"--set={each}" for each in sets))["proposals"]
        return {path for each in found for path in each["settings"]}

    graphs, overlap = "megatronArgs.cuda-graph-modules", "megatronArgs.overlap-moe-expert-parallel-comm"
    assert graphs in proposed("layernorm")
    assert not proposed("moe") & {graphs, overlap}


def test_a_proposal_names_the_layout_that_it_allows() -> None:
    """With FP32 gradients and moments 70B fits on 16 H100 only if whole layers are recomputed."""
    few = ("--recipe", "llama3-70b", "--gpus", "16", "--accelerator", "h100-sxm")
    before = plan(*few)
    smaller = [each for each in before["proposals"] if each["changesNumerics"]]
    assert smaller
    for each in smaller:
        sets = [f"--set={path}={json.dumps(value)}" for path, value in each["settings"].items()]
        after = plan(*few, *sets)
        assert after["tensorModelParallelSize"] < before["tensorModelParallelSize"]
        assert each["layout"] == {name: after[name] for name in each["layout"]}
    printed = CliRunner().invoke(cli, ("plan", *few), catch_exceptions=False).stdout
    assert "; the layout is then TP 4, PP 4, VP 4, CP 1, DP 1" in " ".join(printed.split())


def test_settings_that_gain_no_more_than_fewer_of_them_are_left_out() -> None:
    for few in (SMALL, ("--recipe", "llama3-70b", "--gpus", "16", "--accelerator", "h100-sxm")):
        proposed = plan(*few)["proposals"]
        for each in proposed:
            for other in proposed:
                if other["settings"].items() < each["settings"].items():
                    assert each["speedChange"] > other["speedChange"] + 0.02


def test_the_last_proposal_combines_those_that_keep_the_numerics() -> None:
    """Graphs and overlapped experts need nothing that the image lacks; the dispatcher flex does."""
    words = ("--recipe", "qwen3-30b-a3b", "--gpus", "64", "--accelerator", "h100-sxm")
    *alone, combined = plan(*words)["proposals"]
    assert [each["together"] for each in alone] == [False] * len(alone)
    assert combined["together"]
    assert combined["speedChange"] > max(each["speedChange"] for each in alone)
    assert "megatronArgs.overlap-moe-expert-parallel-comm" in combined["settings"]
    assert "model.moeTokenDispatcherType" not in combined["settings"]
    printed = CliRunner().invoke(cli, ("plan", *words), catch_exceptions=False).stdout
    assert "Those together that keep the numerics and that the image is ready for:" in printed


def test_people_see_settings_gain_and_caveat() -> None:
    printed = CliRunner().invoke(cli, ("plan", *SMALL), catch_exceptions=False).stdout
    proposed = printed.partition("Faster with, each alone and as estimated:\n")[2]
    assert "%  training.usePrecisionAwareOptimizer: true, megatronArgs.exp-avg-dtype: bf16" in proposed
    assert "(moments are kept in BF16)" in proposed


def test_nothing_is_proposed_for_a_recipe_that_is_refused() -> None:
    found = plan("--recipe", "llama3-8b", "--gpus", "12", "--accelerator", "h100-sxm")
    assert found["runnable"] is False
    assert not found.get("proposals")

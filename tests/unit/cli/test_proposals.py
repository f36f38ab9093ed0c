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


def test_a_setting_that_was_taken_is_not_proposed_again() -> None:
    again = plan(*SMALL, "--set", "parallelism.tpCommOverlap=true")["proposals"]
    assert not any("parallelism.tpCommOverlap" in each["settings"] for each in again)


def test_people_see_settings_gain_and_caveat() -> None:
    printed = CliRunner().invoke(cli, ("plan", *SMALL), catch_exceptions=False).stdout
    proposed = printed.partition("Faster with, each alone and as estimated:\n")[2]
    assert "%  training.usePrecisionAwareOptimizer: true, megatronArgs.exp-avg-dtype: bf16" in proposed
    assert "(moments are kept in BF16)" in proposed


def test_nothing_is_proposed_for_a_recipe_that_is_refused() -> None:
    found = plan("--recipe", "llama3-8b", "--gpus", "12", "--accelerator", "h100-sxm")
    assert found["runnable"] is False
    assert not found.get("proposals")

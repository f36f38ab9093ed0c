"""The schedule of recipes of engine bridge that the operator starts: learning rate and weight decay."""

from typing import Any

import pytest
from megatron_operator import catalog

from tests.unit.planner.test_bridge_run import overrides


@pytest.mark.parametrize(
    ("recipe", "training", "decay"),
    [
        ("qwen3-8b-sft", {}, None),
        ("qwen3-8b-sft", {"trainIters": 1000}, None),
        ("qwen3-8b-sft", {"trainTokens": "100M"}, None),
        ("qwen3-8b-sft", {"trainIters": 1000, "lrDecayIters": 800}, 800),
        ("gemma4-vl-26b-sft", {}, 50),
        ("gemma4-vl-26b-sft", {"trainIters": 1000}, None),
    ],
)
def test_the_decay_lasts_the_whole_run_unless_recipe_or_catalog_has_another(
    recipe: str, training: dict[str, Any], decay: int | None
) -> None:
    images = {"volume": {"claimName": "corpus"}, "mockData": True}
    found = overrides(recipe, training=training, data=images)
    assert found["scheduler.lr_decay_iters"] == decay


def test_the_weight_decay_of_the_recipe_is_that_of_the_scheduler_too() -> None:
    found = overrides("llama3.1-8b-sft", training={"weightDecay": 0.2})
    decays = {path: value for path, value in found.items() if path.endswith("weight_decay")}
    assert decays == dict.fromkeys(
        ("optimizer.weight_decay", "scheduler.start_weight_decay", "scheduler.end_weight_decay"), 0.2
    )


@pytest.mark.parametrize(
    ("recipe", "function", "weight_decay"),
    [
        ("qwen3-8b-sft", "qwen3_8b_sft_4gpu_h100_bf16_config", 0.033),
        ("deepseek-v4-flash", "deepseek_v4_flash_pretrain_32gpu_h100_bf16_config", 0.033),
        ("deepseek-v4-flash", "deepseek_v4_flash_pretrain_32gpu_h100_bf16_muon_config", 0.1),
        ("qwen3-8b", None, 0.1),
    ],
)
def test_the_catalog_has_the_weight_decay_with_which_a_function_trains(
    recipe: str, function: str | None, weight_decay: float
) -> None:
    named = catalog.load().function(function) if function else catalog.load().get(recipe)
    assert named is not None
    assert named.training.weight_decay == weight_decay

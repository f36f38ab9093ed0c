"""The schedule of recipes of engine bridge that the operator starts: learning rate and weight decay."""

from typing import Any

import pytest

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

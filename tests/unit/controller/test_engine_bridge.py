"""A recipe of an engine that the trainer image does not start: told by a condition, never a job."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.config_source import Known
from megatron_operator.lifecycle.desired import refuse, want


def test_a_recipe_that_megatron_bridge_runs_is_not_planned_and_says_what_to_do(run: Any) -> None:
    run.body["spec"] = {"recipe": "qwen3-vl-8b-sft", "accelerator": {"count": 8}, "data": {"mockData": True}}
    platform = PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"})
    draft = run.draft()
    with pytest.raises(InvalidRecipeError) as refused:
        want(draft, Known(platform, catalog.load()))
    refuse(draft, "Refused", refused.value, running=False)
    condition = draft.condition(Condition.PLANNED)
    assert condition.status == "False"
    assert "qwen3-vl-8b-sft is run by Megatron-Bridge" in condition.message
    assert "choose a recipe of engine megatron" in condition.message
    assert draft.status.phase == Phase.REFUSED

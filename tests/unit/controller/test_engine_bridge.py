"""A recipe of an engine that the trainer image does not support is refused by a condition."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.conditions import Condition, Phase
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.reasons import Reason
from megatron_operator.lifecycle.desired import Config, desired_state
from megatron_operator.lifecycle.job_status import set_refused


def test_a_recipe_of_engine_bridge_is_refused_with_a_message_that_names_the_fix(run: Any) -> None:
    run.body["spec"] = {
        "recipe": "qwen3.5-vl-9b-sft",
        "accelerator": {"count": 8},
        "data": {"mockData": True},
    }
    platform = PlatformConfig.model_validate({"accelerators": {"h100-sxm": {}}, "image": "trainer"})
    status = run.status()
    with pytest.raises(InvalidRecipeError) as error:
        desired_state(status, Config(platform, catalog.load()))
    set_refused(status, Reason.REFUSED, error.value, running=False)
    condition = status.condition(Condition.PLANNED)
    assert condition.status == "False"
    assert "qwen3.5-vl-9b-sft is run by Megatron-Bridge" in condition.message
    assert "choose a recipe that is started" in condition.message
    assert status.current.phase == Phase.REFUSED

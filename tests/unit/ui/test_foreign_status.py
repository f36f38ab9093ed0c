"""A status that no operator wrote fails no page."""

from typing import Any

import pytest
from megatron_operator.cli.run_status import is_outdated
from megatron_operator.ui import views

from testkit.example_runs import training_run

NOW = 1_790_000_000.0


def test_a_plan_without_accelerators_has_no_speed_of_one() -> None:
    recipe = training_run("run")
    recipe["status"]["plan"]["worldSize"] = 0
    recipe["status"]["progress"]["tokensPerSecond"] = 1200.0
    assert dict(views.facts(recipe, NOW))["Tokens/s"] == "1,200"


@pytest.mark.parametrize("observed", ["1", None, [1]])
def test_a_generation_that_is_no_number_is_not_compared(observed: Any) -> None:
    assert not is_outdated({"metadata": {"generation": 2}, "status": {"observedGeneration": observed}})

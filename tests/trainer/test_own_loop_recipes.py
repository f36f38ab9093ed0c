"""Recipes of Megatron's own loop, as the operator renders them: small models that one CPU rank trains.

`make bridge-training` trains further ones from weights (test_own_loop_conversions.py).
"""

import math
from pathlib import Path
from typing import Any

import pytest

from testkit.own_loop import ALONE
from tests.trainer.bridge_run import LENGTH, rendered_objects
from tests.trainer.own_loop_runs import SIZES, OwnLoopGang
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 2


def spec_of(recipe: str) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "accelerator": {"type": "cpu", "count": 1, "perNode": 1},
        "model": {name: value for name, value in (SIZES | ALONE[recipe]).items() if value is not None},
        "data": {"mockData": True},
        "training": {
            **{"seqLength": LENGTH, "globalBatchSize": 2, "microBatchSize": 1, "trainIters": ITERATIONS},
            **{"lr": 0.01, "lrWarmupIters": 0, "evalIters": 0},
        },
        "checkpoint": {"saveInterval": ITERATIONS, "volume": {"size": "100Ti"}},
    }


@pytest.mark.parametrize("recipe", ALONE)
def test_a_small_model_of_a_recipe_is_trained_as_the_operator_renders_it(
    recipe: str, warm: WarmProcess, tmp_path: Path
) -> None:
    run = OwnLoopGang(tmp_path, warm, tmp_path, rendered_objects(spec_of(recipe)), ranks=1)
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    assert sorted(run.losses()) == list(range(1, ITERATIONS + 1))
    assert all(math.isfinite(loss) for losses in run.losses().values() for loss in losses)

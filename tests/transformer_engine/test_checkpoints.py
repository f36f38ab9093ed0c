"""The size of a checkpoint and the number of its files are what the operator counts on."""

from typing import Any

import pytest
from cases import CORPUS, build, case
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from meta_checkpoint import first_ranks, planned, planner, sizes, state
from stages import Megatron

LAYOUTS = (
    "llama3-8b 64xh100-sxm",
    "mixtral-8x7b 64xh100-sxm",
    "deepseek-v3 256xh100-sxm",
    "llama3.1-405b 1024xh100-sxm",
)
WHOLE_OPTIMIZER = {"useDistributedOptimizer": False, "overlapParamGather": False}
MOMENTS_IN_BF16 = {"exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"}
PADDING = 0.005
"""Parameters are aligned in the optimizer's buckets, and all tensor-parallel ranks save states of norms."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_size_is_the_one_that_the_grace_period_is_made_for(megatron: Megatron, name: str) -> None:
    run = case(name)
    stages = [state(megatron, run, rank) for rank in first_ranks(run)]
    found = sizes(run, stages)
    assert run.plan.parameters_padded is not None
    assert found.model == pytest.approx(2 * run.plan.parameters_padded, rel=1e-6)
    assert found.total == pytest.approx(checkpoint_bytes(run.resolved, run.plan), rel=PADDING)
    assert all(planner(stage).plan.items for stage in stages), "a rank without a file"


@pytest.mark.parametrize(
    "spec",
    [
        {"training": {"bf16": False}},
        {"training": {"bf16": False}, "parallelism": WHOLE_OPTIMIZER},
        {"training": {"fp16": True, "bf16": False}},
        {"training": {"bf16": True}, "parallelism": WHOLE_OPTIMIZER},
        {"training": {"bf16": True, "usePrecisionAwareOptimizer": True}, "megatronArgs": MOMENTS_IN_BF16},
        {"recovery": {"elastic": {"minCount": 4}}, "accelerator": {"perNode": 4}},
    ],
    ids=["FP32", "FP32, whole optimizer", "FP16", "BF16, whole optimizer", "precision-aware", "elastic"],
)
def test_the_size_follows_precision_and_optimizer(megatron: Megatron, spec: dict[str, Any]) -> None:
    base = {"recipe": "gpt3-1.3b", "data": CORPUS} | spec
    base["accelerator"] = {"type": "h100-sxm", "count": 8} | spec.get("accelerator", {})
    run = build("gpt3-1.3b", base)
    found = sizes(run, [state(megatron, run, rank) for rank in first_ranks(run)])
    assert found.total == pytest.approx(checkpoint_bytes(run.resolved, run.plan), rel=PADDING)


def test_all_ranks_together_write_every_byte_once_in_a_file_each(megatron: Megatron) -> None:
    run = case("mixtral-8x7b 64xh100-sxm")
    planners = [planner(state(megatron, run, rank)) for rank in range(run.world_size)]
    found = planned(planners[0], [each.plan for each in planners])
    assert found.files == run.world_size
    assert found.tensor_bytes == pytest.approx(checkpoint_bytes(run.resolved, run.plan), rel=PADDING)

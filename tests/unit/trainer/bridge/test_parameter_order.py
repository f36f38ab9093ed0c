"""Optimizer states of parameters in FP32 beside others in BF16 are found in the order of the optimizer."""

from typing import Any

import pytest
import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron_trainer.bridge import parameter_order


def parameter(dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1, dtype=dtype))


def test_parameters_in_fp32_come_first_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_build_optimizer_group_ranges"
    # The original is put back behind the test.
    monkeypatch.setattr(DistributedOptimizer, name, getattr(DistributedOptimizer, name))
    parameter_order.install()
    narrow, other = (parameter(torch.bfloat16) for _ in range(2))
    wide, alone = (parameter(torch.float32) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [narrow, wide, other]}, {"params": [alone]}]
    buffers: list[dict[str, Any]] = [
        {"bf16": [{"param_map": {narrow: {}, other: {}}}]},
        {"fp32": [{"param_map": {wide: {}, alone: {}}}]},
    ]

    places, ranges = DistributedOptimizer._build_optimizer_group_ranges(groups, buffers)

    assert places == {wide: (0, 0), narrow: (0, 1), other: (0, 2), alone: (1, 0)}
    assert [[*map(id, each["params"])] for each in ranges] == [[id(wide), id(narrow), id(other)], [id(alone)]]

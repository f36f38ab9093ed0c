"""Elements of the optimizer's buckets are counted without padding, where Megatron could not save them."""

from typing import Any

import pytest
import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.param_layout import PerBufferParamLayout
from megatron_trainer.bridge import bucket_sizes


def counted(monkeypatch: pytest.MonkeyPatch, end: int, padded: int, megatron: int) -> list[int]:
    """What is counted of one bucket whose parameters end at `end`, and that is padded to `padded`."""
    parameter = torch.nn.Parameter(torch.empty(1))
    layout = PerBufferParamLayout({parameter: (0, end, 0)}, [(0, padded)], [megatron], [0])
    name = "_compute_per_buffer_param_layout"
    monkeypatch.setattr(DistributedOptimizer, name, staticmethod(lambda: layout))
    bucket_sizes.install()
    optimizer: Any = DistributedOptimizer
    return list(optimizer._compute_per_buffer_param_layout().per_bucket_numel_unpadded)


def test_padding_in_front_of_a_shared_embedding_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counted(monkeypatch, end=100, padded=256, megatron=128) == [100]


def test_a_count_that_could_be_saved_stays_for_checkpoints_of_earlier_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert counted(monkeypatch, end=100, padded=128, megatron=128) == [128]

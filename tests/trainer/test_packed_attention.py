"""Packed samples on CPUs: each has the losses and gradients that it has alone."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from testkit.weights.warm import WarmConverter

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)
CLOSE = 1e-5
"""Largest difference of a loss, and of a gradient in relation to the largest, in float32."""


@pytest.mark.parametrize(
    "family",
    [
        *("Llama", "Llama-Nemotron", "Qwen2", "Qwen3", "Qwen3-MoE", "GPT-OSS", "Gemma 2", "Gemma 3"),
        *("GLM-4.5 without MTP", "GLM-4.5", "EXAONE 4.0", "K-EXAONE", "K-EXAONE 2.0", "OLMoE", "Moonlight"),
    ],
)
def test_packed_samples_have_the_losses_and_gradients_of_the_same_samples_alone(
    family: str, converter: WarmConverter, tmp_path: Path
) -> None:
    found = converter.prove_packed(family, tmp_path)
    assert found["loss"] < CLOSE < 1e-2 < found["unbounded loss"]
    assert found["gradient"] <= CLOSE * found["largest gradient"]


def test_a_mask_is_that_of_a_sample_and_samples_of_no_length_are_left_out() -> None:
    from megatron_trainer.bridge.packed_attention import PackedAttention

    seen: list[Any] = []

    class Recorded(torch.nn.Module):
        def forward(self, query: torch.Tensor, _key: Any, _value: Any, mask: torch.Tensor) -> torch.Tensor:
            seen.append((len(query), int(mask.sum())))
            return query.flatten(2)

    class Apart(PackedAttention, Recorded):
        pass

    query = torch.arange(24.0).view(6, 2, 2)
    packed = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 2, 6, 6]))
    output = Apart()(query, query, query, None, packed_seq_params=packed)
    # Of n positions n * (n - 1) / 2 pairs are of one and another behind it.
    assert seen == [(2, 1), (4, 6)]
    assert torch.equal(output, query.flatten(1))

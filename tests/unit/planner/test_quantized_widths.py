"""Widths of ranks that Transformer Engine multiplies in FP8."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

FP8 = {"fp8Format": "hybrid", "fp8Recipe": "tensorwise"}


def refusal(resolved: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved)
    return str(refused.value)


def test_a_slice_that_is_no_multiple_of_16_is_refused_in_fp8_alone(resolve: Any) -> None:
    asked = {"tensorModelParallelSize": 8}
    message = refusal(resolve("glm4.5-air", 64, "h100-sxm", training=FP8, parallelism=asked))
    assert "TP 8 leaves a rank 1368 of ffnHiddenSize 10944" in message
    assert "multiples of 16 in this precision; set one of 1, 2, 4, or leave training.fp8Format" in message
    assert plan(resolve("glm4.5-air", 64, "h100-sxm", parallelism=asked)).tensor_model_parallel_size == 8


def test_blocks_of_mxfp8_are_of_32(resolve: Any) -> None:
    mxfp8 = {"fp8Format": "e4m3", "fp8Recipe": "mxfp8"}
    asked = {"expertTensorParallelSize": 8, "tensorModelParallelSize": 4}
    message = refusal(resolve("glm4.5-air", 64, "gb200", training=mxfp8, parallelism=asked))
    assert "expertTensorParallelSize: ETP 8 leaves a rank 176 of moeFfnHiddenSize 1408" in message
    assert "tensorModelParallelSize: TP 4 leaves a rank 2736 of ffnHiddenSize 10944" in message
    assert "multiples of 32 in this precision; set one of 1, 2, or" in message


def test_the_planner_chooses_no_such_slice(resolve: Any) -> None:
    chosen = plan(resolve("glm4.5-air", 512, "h100-sxm", training=FP8))
    assert 10944 // (chosen.tensor_model_parallel_size or 1) % 16 == 0

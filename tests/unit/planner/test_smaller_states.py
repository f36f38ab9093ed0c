"""A refusal for memory names the settings with which a layout would fit."""

import re
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

GRADIENTS = "megatronArgs.grad-reduce-in-bf16: true"
LONG = {"model": {"maxPositionEmbeddings": 32768}, "training": {"seqLength": 32768}}


def fix(resolve: Any, *words: Any, **spec: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(*words, **spec))
    [error] = refused.value.errors
    return str(error)


def test_gradients_in_bf16_are_named_and_are_enough(resolve: Any) -> None:
    """8B on 2 H100, long sequences: 18 bytes per parameter and activations, or 20 in the optimizer's step."""
    text = fix(resolve, "llama3-8b", 2, "h100-sxm", **LONG)
    found = re.search(rf"or {re.escape(GRADIENTS)}, with which (.*) needs ([\d.]+) GiB", text)
    assert found is not None
    assert found[1] == "TP 2, PP 1, CP 1, DP 1"
    sizes = {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
    smaller = LONG | {"megatronArgs": {"grad-reduce-in-bf16": True}, "parallelism": sizes}
    memory = plan(resolve("llama3-8b", 2, "h100-sxm", **smaller)).memory_per_gpu
    assert memory is not None
    assert memory.capacity is not None
    assert memory.total <= memory.capacity


def test_what_would_not_be_enough_is_not_named(resolve: Any) -> None:
    assert "grad-reduce-in-bf16" not in fix(resolve, "llama3-70b", 1, "h200")


def test_gradients_in_bf16_are_not_named_where_their_fp32_copies_do_not_fit(resolve: Any) -> None:
    """70B on 8 H200: 20 bytes per parameter of each in the optimizer's step, instead of 18."""
    assert "grad-reduce-in-bf16" not in fix(resolve, "llama3-70b", 8, "h200")


def test_what_the_recipe_sets_is_not_named(resolve: Any) -> None:
    text = fix(resolve, "llama3-8b", 2, "h100-sxm", **LONG, megatronArgs={"grad-reduce-in-bf16": False})
    assert GRADIENTS not in text

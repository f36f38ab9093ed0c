"""A refusal for memory names the settings with which a layout would fit."""

import re
from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

GRADIENTS = "megatronArgs.grad-reduce-in-bf16: true"


def fix(resolve: Any, *words: Any, **spec: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(*words, **spec))
    [error] = refused.value.errors
    return str(error)


def test_gradients_in_bf16_are_named_and_are_enough(resolve: Any) -> None:
    """70B on 8 H200: 16 bytes per parameter are 151 GiB of each, 14 bytes 135."""
    text = fix(resolve, "llama3-70b", 8, "h200")
    found = re.search(rf"or {re.escape(GRADIENTS)}, with which (.*) needs ([\d.]+) GiB", text)
    assert found is not None
    assert found[1] == "TP 8, PP 1, CP 1, DP 1"
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
    gradients = {"grad-reduce-in-bf16": True}
    memory = plan(resolve("llama3-70b", 8, "h200", megatronArgs=gradients, parallelism=sizes)).memory_per_gpu
    assert memory is not None
    assert memory.capacity is not None
    assert memory.total <= memory.capacity


def test_what_would_not_be_enough_is_not_named(resolve: Any) -> None:
    assert "grad-reduce-in-bf16" not in fix(resolve, "llama3-70b", 1, "h200")


def test_what_the_recipe_sets_is_not_named(resolve: Any) -> None:
    text = fix(resolve, "llama3-70b", 8, "h200", megatronArgs={"grad-reduce-in-bf16": False})
    assert GRADIENTS not in text

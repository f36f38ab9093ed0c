"""Memory, time and checkpoints of LoRA: frozen weights have no gradients and no optimizer states."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.api.status import MemoryPerGpu, Plan
from megatron_operator.catalog import ResolvedRecipe, load, resolve
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import plan
from megatron_operator.planner.estimate.checkpoint import checkpoint_bytes
from megatron_operator.planner.estimate.hardware import GIB

ONE_LAYER = 16 * (4096 + 6144 + 4096 + 4096 + 4096 + 2 * 14336 + 14336 + 4096)
"""Rank 16 on query-key-value, projection and both feed-forward layers of Llama 3 8B."""


def resolved(recipe: str, count: int, **spec: Any) -> ResolvedRecipe:
    asked = {"recipe": recipe, "accelerator": {"type": "h100-sxm", "count": count}} | spec
    return resolve(MegatronRecipeSpec.model_validate(asked), default_platform(), load())


def planned(recipe: str, count: int, **spec: Any) -> Plan:
    return plan(resolved(recipe, count, **spec))


def memory(p: Plan) -> MemoryPerGpu:
    assert p.memory_per_gpu is not None
    return p.memory_per_gpu


def test_lora_of_70b_fits_on_two_gpus_of_80_gb() -> None:
    held = memory(planned("llama3.1-70b-lora", 2))
    assert held.total / GIB == pytest.approx(74, abs=1)
    assert held.weights / GIB == pytest.approx(65.9, abs=0.1)
    assert held.gradients + held.optimizer < 2 * GIB


def test_gradients_and_optimizer_are_those_of_the_adapters() -> None:
    one = memory(planned("llama3-8b-lora", 1, peft={"dim": 16}))
    assert one.gradients == 4 * 32 * ONE_LAYER
    assert one.optimizer == 12 * 32 * ONE_LAYER


def test_the_memory_of_adapters_grows_with_their_rank_and_modules() -> None:
    small = memory(planned("llama3-8b-lora", 1, peft={"dim": 8, "targetModules": ["linear_qkv"]}))
    large = memory(planned("llama3-8b-lora", 1, peft={"dim": 256}))
    assert small.optimizer < large.optimizer
    assert small.total < large.total


def test_a_step_of_lora_takes_less_than_one_that_trains_all_weights() -> None:
    layout = {"tensorModelParallelSize": 2, "pipelineModelParallelSize": 1}
    asked = {"parallelism": layout, "training": {"microBatchSize": 1}}
    lora, full = planned("llama3-8b-lora", 8, **asked), planned("llama3-8b-sft", 8, **asked)
    assert lora.expected is not None
    assert full.expected is not None
    # Without gradients of weights a third of the matrix products is left out.
    assert 0.6 < lora.expected.step_seconds / full.expected.step_seconds < 0.9


def test_checkpoints_of_lora_hold_adapters_only() -> None:
    r = resolved("llama3-8b-lora", 1, peft={"dim": 16})
    size = checkpoint_bytes(r, plan(r))
    assert size == 14 * 32 * ONE_LAYER


def test_the_plan_states_how_many_parameters_are_trained() -> None:
    notes = planned("llama3-8b-lora", 1, peft={"dim": 16, "type": "dora"}).notes
    trained = 32 * (ONE_LAYER + 6144 + 4096 + 2 * 14336 + 4096)
    assert any(note.startswith(f"DoRA of rank 16 trains {trained:,} parameters") for note in notes)


def test_of_a_model_with_experts_attention_alone_gets_adapters() -> None:
    """GLM-4.5-Air: 46 layers, and one of multi-token prediction."""
    p = planned("glm4.5-air-lora", 8)
    attention = (4096 + (96 + 2 * 8) * 128) + (96 * 128 + 4096)
    assert p.expert_model_parallel_size == 4
    assert f"LoRA of rank 32 trains {32 * 47 * attention:,} parameters" in " ".join(p.notes)


def test_frozen_experts_are_held_in_bf16_and_split_by_expert_parallelism() -> None:
    layout = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1}
    one, eight = (
        memory(planned("qwen3-30b-a3b-lora", 8, parallelism=layout | {"expertModelParallelSize": ep}))
        for ep in (1, 8)
    )
    experts = 48 * 128 * 3 * 2048 * 768
    assert one.weights - eight.weights == 2 * experts * 7 // 8
    assert one.gradients == eight.gradients == 4 * 48 * 8 * (2048 + 5120 + 4096 + 2048)


def test_tensor_parallelism_that_does_not_divide_the_rank_is_refused() -> None:
    """`linear_in` of an adapter is a ColumnParallelLinear of `dim` outputs; not so of row-parallel layers."""
    layout = {"parallelism": {"tensorModelParallelSize": 8}}
    with pytest.raises(InvalidRecipeError) as refused:
        planned("llama3-8b-lora", 8, peft={"dim": 4}, **layout)
    [error] = refused.value.errors
    assert error.field == "spec.parallelism.tensorModelParallelSize"
    assert error.message == "8 does not divide peft.dim 4"
    assert error.fix == "set a divisor of 4, or spec.peft.dim to a multiple of 8"
    of_projection = {"dim": 4, "targetModules": ["linear_proj"]}
    assert planned("llama3-8b-lora", 8, peft=of_projection, **layout).tensor_model_parallel_size == 8


def test_the_planner_chooses_a_tensor_parallelism_that_divides_the_rank() -> None:
    long = {"training": {"seqLength": 32768, "microBatchSize": 1}}
    sizes = {
        dim: planned("llama3.1-70b-lora", 8, peft={"dim": dim}, **long).tensor_model_parallel_size
        for dim in (4, 2, 3)
    }
    assert sizes[4] == 4
    assert sizes[2] in (1, 2)
    assert sizes[3] == 1

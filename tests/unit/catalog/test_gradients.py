"""`training.accumulateAllreduceGradsInFp32`: each accepted value is the format of the sums of gradients."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate.workload import numerics

FLAGS = {"--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16", "--main-grads-dtype"}
FUNCTION = "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config"


def resolved(recipe: str = "llama3-8b", accelerator: str = "h100-sxm", **spec: Any) -> ResolvedRecipe:
    asked = {"recipe": recipe, "accelerator": {"type": accelerator, "count": 8}, "data": {"mockData": True}}
    return catalog.resolve(
        MegatronRecipeSpec.model_validate(asked | spec), default_platform(), catalog.load()
    )


def flags(found: ResolvedRecipe) -> set[str]:
    return FLAGS & set(megatron_arguments(found, plan(found), "run"))


def summed(in_fp32: bool | None, **training: Any) -> dict[str, Any]:
    return {"accumulateAllreduceGradsInFp32": in_fp32} | training


@pytest.mark.parametrize(
    ("training", "expected", "gradient_bytes"),
    [
        ({}, set(), 4),
        (summed(True), {"--accumulate-allreduce-grads-in-fp32"}, 4),
        (summed(False), {"--grad-reduce-in-bf16"}, 2),
        (summed(True, bf16=False, fp16=True), {"--accumulate-allreduce-grads-in-fp32"}, 4),
        (summed(False, bf16=False, fp16=True), set(), 2),
        ({"bf16": False, "fp16": True}, set(), 2),
        (summed(True, bf16=False), {"--accumulate-allreduce-grads-in-fp32"}, 4),
    ],
)
def test_the_value_is_megatrons_flag_for_the_precision(
    training: dict[str, Any], expected: set[str], gradient_bytes: int
) -> None:
    found = resolved(training=training)
    assert flags(found) == expected
    assert numerics(found.training, found.megatron_args).gradient == gradient_bytes


def test_flags_of_a_function_give_way_to_the_recipe() -> None:
    function = resolved(FUNCTION, "gb200")
    assert function.megatron_args["grad-reduce-in-bf16"] is True
    found = resolved(FUNCTION, "gb200", training=summed(True))
    assert flags(found) == {"--accumulate-allreduce-grads-in-fp32"}


def test_sums_in_bf16_are_not_proposed_to_a_recipe_that_asks_for_fp32() -> None:
    assert resolved(training=summed(True)).is_set_by_user("megatronArgs.grad-reduce-in-bf16")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"training": summed(True), "megatronArgs": {"grad-reduce-in-bf16": True}},
            "true contradicts megatronArgs.grad-reduce-in-bf16 true; set one of the two",
        ),
        (
            {"training": summed(False), "megatronArgs": {"grad-reduce-in-bf16": False}},
            "false contradicts megatronArgs.grad-reduce-in-bf16 false; set one of the two",
        ),
        (
            {
                "training": summed(True, usePrecisionAwareOptimizer=True),
                "megatronArgs": {"main-grads-dtype": "bf16"},
            },
            "true contradicts megatronArgs.main-grads-dtype bf16; set one of the two",
        ),
        (
            {"training": summed(False, bf16=False)},
            "false: gradients of FP32 parameters are in FP32; leave it out, or set bf16: true",
        ),
    ],
)
def test_a_value_that_megatron_would_not_honour_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        resolved(**spec)
    assert f"spec.training.accumulateAllreduceGradsInFp32: {message}" in str(refused.value)


def test_the_flag_itself_is_set_by_the_field() -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved(megatronArgs={"accumulate-allreduce-grads-in-fp32": True}))
    assert "is set by spec.training.accumulateAllreduceGradsInFp32" in str(refused.value)

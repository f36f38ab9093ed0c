"""`training.fp4Format`: NVFP4 products, which Blackwell alone multiplies."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import megatron_arguments, plan
from megatron_operator.planner.estimate.workload import numerics

from tests.unit.planner.test_bridge_run import refusals

FP4 = {"fp4Format": "e2m1"}


def arguments(resolved: Any) -> list[str]:
    return megatron_arguments(resolved, plan(resolved), "run")


def test_the_field_is_the_flag_and_its_scaling_is_megatrons_default(resolve: Any) -> None:
    words = arguments(resolve("llama3-8b", 8, "gb200", training=FP4 | {"fp4ParamGather": True}))
    assert words[words.index("--fp4-format") + 1] == "e2m1"
    assert "--fp4-param-gather" in words
    assert not {"--fp8-format", "--fp4-recipe"} & set(words)


def test_fp4_of_a_recipe_replaces_fp8_of_the_catalog_with_its_scaling(resolve: Any) -> None:
    words = arguments(resolve("llama3-8b-fp8", 64, "gb200", training=FP4))
    assert words[words.index("--fp4-format") + 1] == "e2m1"
    assert not [word for word in words if word.startswith("--fp8")]


def test_fp8_of_a_recipe_replaces_fp4_of_a_function(resolve: Any) -> None:
    nvfp4 = "llama3_8b_pretrain_2gpu_h100_nvfp4_config"
    resolved = resolve(nvfp4, 4, "gb200", training={"fp8Format": "hybrid"})
    words = arguments(resolved)
    assert words[words.index("--fp8-format") + 1] == "hybrid"
    assert not [word for word in words if word.startswith("--fp4")]
    assert not [note for note in resolved.notes if "BF16" in note]


def test_products_are_timed_as_fp8_and_the_plan_states_it(resolve: Any) -> None:
    four, eight = (
        plan(resolve("llama3-8b", 64, "gb200", training=training))
        for training in (FP4, {"fp8Format": "hybrid", "fp8Recipe": "tensorwise"})
    )
    assert four.expected is not None
    assert eight.expected is not None
    assert four.expected.step_seconds == pytest.approx(eight.expected.step_seconds)
    assert "NVFP4 is estimated at the speed of FP8" in four.notes


def test_weights_have_copies_of_lower_precision(resolve: Any) -> None:
    n = numerics(resolve("llama3-8b", 8, "gb200", training=FP4).training, {})
    assert (n.fp4, n.fp8, n.fp8_copies, n.weight) == (True, True, 2, 2)


@pytest.mark.parametrize("accelerator", ["a100-80", "l40s", "h100-sxm", "h200"])
def test_hardware_before_blackwell_is_refused(resolve: Any, accelerator: str) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve("llama3-8b", 64, accelerator, training=FP4))
    assert "spec.training.fp4Format: e2m1: " in str(refused.value)
    assert "does not support FP4 matrix products; leave it out, or use Blackwell or later" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("recipe", "spec", "message"),
    [
        (
            "llama3-8b",
            {"training": FP4 | {"fp8Format": "hybrid"}},
            "fp4Format: is set together with fp8Format hybrid; set one of the two",
        ),
        (
            "llama3-8b",
            {"training": FP4 | {"transformerImpl": "local"}},
            "transformerImpl: local, but FP4 requires Transformer Engine",
        ),
        (
            "llama3-8b",
            {"training": FP4 | {"fp16": True, "bf16": None}},
            "fp4Format: e2m1 without bf16 would keep parameters in FP32",
        ),
        (
            "llama3-8b",
            {
                "training": FP4 | {"fp4ParamGather": True},
                "parallelism": {"useDistributedOptimizer": False, "overlapParamGather": False},
            },
            "fp4ParamGather: requires the distributed optimizer, which is off",
        ),
        (
            "llama3-8b",
            {"training": FP4, "megatronArgs": {"fp4-quantizer-factory": "quantizers.make"}},
            "fp4-quantizer-factory: has no effect without fp4-recipe custom",
        ),
        (
            "llama3-8b",
            {"megatronArgs": {"fp4-recipe": "nvfp4"}},
            "fp4-recipe: is set without training.fp4Format; set training.fp4Format: e2m1, or leave it out",
        ),
        (
            "llama3-8b",
            {"megatronArgs": {"fp4-format": "e2m1"}},
            "fp4-format: is set by spec.training.fp4Format",
        ),
    ],
)
def test_what_megatron_refuses_or_ignores_is_refused(
    resolve: Any, recipe: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolve(recipe, 64, "gb200", **spec))
    assert any(message in str(error) for error in refused.value.errors)


@pytest.mark.parametrize("training", [FP4, {"fp8Format": "hybrid", "fp8Recipe": "mxfp8"}])
def test_a_workstations_blackwell_is_refused_with_those_that_have_the_format(
    resolve: Any, training: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRecipeError, match=r"or use a data-center Blackwell \(b200, gb200\)"):
        plan(resolve("llama3-8b", 8, "rtx-pro-6000", training=training))


def test_a_published_layout_for_another_precision_is_not_taken(resolve: Any) -> None:
    assert resolve("llama3-70b", 64, "h100-sxm").layout is not None
    assert resolve("llama3-70b", 64, "h100-sxm", training=FP4).layout is None


def test_a_function_of_megatron_bridge_keeps_its_own_precision() -> None:
    assert refusals("gemma2-2b-sft", training=FP4) == [
        "spec.training.fp4Format: e2m1 is not the precision of gemma2_2b_sft_1gpu_h100_bf16_config (bf16);"
        " leave it out"
    ]

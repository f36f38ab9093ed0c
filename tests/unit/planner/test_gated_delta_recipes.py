"""Recipes of Qwen3-Next, of Qwen3.5's text models and of Qwen3.5-VL: where the operator starts them."""

from functools import partial

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import manifests

from tests.unit.planner import kernel_recipes

KERNELS = "flash-linear-attention"
COUNT = 32
RECIPES = (
    *("qwen3-next-80b-a3b", "qwen3-next-80b-a3b-sft", "qwen3.5-35b-a3b", "qwen3.5-9b"),
    *("qwen3.5-vl-9b-sft", "qwen3.5-vl-0.8b-lora", "qwen3.5-vl-35b-a3b-sft"),
)


planned = partial(kernel_recipes.planned, kernel_recipes.platform(KERNELS))
refusal = partial(kernel_recipes.refusal, kernel_recipes.platform(KERNELS))


@pytest.mark.parametrize("accelerator", ["cpu", "kernels", "kernels-and-dispatchers"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gated_delta_net_is_started_on_cpus_and_where_the_image_has_the_kernels(
    recipe: str, accelerator: str
) -> None:
    run = planned(recipe, accelerator, COUNT)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    assert BridgeRun.from_arguments(run.arguments).overrides["checkpoint.save"] == "/checkpoints/run"


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_is_refused_on_other_gpus_with_the_package_to_add(recipe: str) -> None:
    refused = refusal(recipe, "h100-sxm", COUNT)
    assert refused.startswith("spec.recipe: ")
    assert f"on GPUs the trainer's image lacks kernels that it needs: {KERNELS};" in refused
    assert f"add {KERNELS} to imageHas of profile h100-sxm" in refused


def test_a_function_that_shards_by_fsdp_is_not_started() -> None:
    function = "qwen35_vl_35b_a3b_sft_2gpu_h100_bf16_fsdp_config"
    refused = refusal(function, "kernels", COUNT)
    assert f"{function} shards by Megatron's FSDP, whose checkpoints are in another format" in refused
    assert refused.endswith("name the recipe instead: qwen3.5-vl-35b-a3b-sft")

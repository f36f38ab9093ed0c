"""Recipes of Qwen3-Next, of Qwen3.5's text models and of Qwen3.5-VL: where the operator starts them."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import PlannedRun, admit

KERNELS = "flash-linear-attention"
PLATFORM: dict[str, Any] = {
    "bridgeImage": "bridge",
    "accelerators": {
        "h100-sxm": {},
        "kernels": {"hardware": "h100-sxm", "imageHas": [KERNELS]},
        "kernels-and-dispatchers": {"hardware": "h100-sxm", "imageHas": [KERNELS, "deepep", "hybridep"]},
        "cpu": {"platform": "cpu"},
    },
}
INIT: dict[str, Any] = {"modelFolder": "/data/model"}
WEIGHTS: dict[str, Any] = {"from": {"megatron": {"path": "/data/weights"}}}
MOCK: dict[str, Any] = {"mockData": True, "volume": {"claimName": "models"}}
RECIPES = (
    *("qwen3-next-80b-a3b", "qwen3-next-80b-a3b-sft", "qwen3.5-35b-a3b", "qwen3.5-9b"),
    *("qwen3.5-vl-9b-sft", "qwen3.5-vl-0.8b-lora", "qwen3.5-vl-35b-a3b-sft"),
)


def planned(recipe: str, accelerator: str, count: int = 32, **spec: Any) -> PlannedRun:
    init = INIT | (WEIGHTS if catalog.load().get(recipe).fine_tunes else {})
    asked = {
        "recipe": recipe,
        "accelerator": {"type": accelerator, "count": count},
        "data": MOCK,
        "init": init,
    }
    config = PlatformConfig.model_validate(PLATFORM)
    return admit("run", MegatronRecipeSpec.model_validate(asked | spec), config, catalog.load())


def refusal(recipe: str, accelerator: str, **spec: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(recipe, accelerator, **spec), "")
    (error,) = refused.value.errors
    return f"{error.field}: {error.message}; {error.fix}"


@pytest.mark.parametrize("accelerator", ["cpu", "kernels", "kernels-and-dispatchers"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gated_delta_net_is_started_on_cpus_and_where_the_image_has_the_kernels(
    recipe: str, accelerator: str
) -> None:
    run = planned(recipe, accelerator)
    assert manifests.build(run, "").job["kind"] == "PyTorchJob"
    assert BridgeRun.from_arguments(run.arguments).overrides["checkpoint.save"] == "/checkpoints/run"


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_is_refused_on_other_gpus_with_the_package_to_add(recipe: str) -> None:
    refused = refusal(recipe, "h100-sxm")
    assert refused.startswith("spec.recipe: ")
    assert f"on GPUs the trainer's image lacks kernels that it needs: {KERNELS};" in refused
    assert f"add {KERNELS} to imageHas of profile h100-sxm" in refused


def test_a_function_that_shards_by_fsdp_is_not_started() -> None:
    function = "qwen35_vl_35b_a3b_sft_2gpu_h100_bf16_fsdp_config"
    refused = refusal(function, "kernels")
    assert f"{function} shards by Megatron's FSDP, whose checkpoints are in another format" in refused
    assert refused.endswith("name the recipe instead: qwen3.5-vl-35b-a3b-sft")


def test_zero_centred_norms_stay_refused_on_a_cpu_in_megatrons_own_loop() -> None:
    spec = {"recipe": "tiny-gpt", "accelerator": {"type": "cpu", "count": 2}, "data": {"mockData": True}}
    asked = MegatronRecipeSpec.model_validate(spec | {"model": {"applyLayernorm1p": True}})
    with pytest.raises(InvalidRecipeError) as refused:
        admit("run", asked, PlatformConfig.model_validate(PLATFORM), catalog.load())
    assert "spec.model.applyLayernorm1p" in [error.field for error in refused.value.errors]

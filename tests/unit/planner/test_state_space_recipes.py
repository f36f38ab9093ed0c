"""Recipes of Nemotron's hybrid models: where the operator starts them, and the layers that get an adapter."""

from typing import Any

import pytest
from megatron_contract.bridge_run import BridgeRun, Value
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import bridge_pretraining
from megatron_operator.planner import PlannedRun, admit

PLATFORM: dict[str, Any] = {
    "bridgeImage": "bridge",
    "accelerators": {
        "h100-sxm": {},
        "without-dispatchers": {"hardware": "h100-sxm", "imageHas": ["mamba-ssm"]},
        "with-kernels": {"hardware": "h100-sxm", "imageHas": ["mamba-ssm", "deepep", "hybridep"]},
        "cpu": {"platform": "cpu"},
    },
}
INIT: dict[str, Any] = {"modelFolder": "/data/model", "from": {"megatron": {"path": "/data/weights"}}}
MOCK: dict[str, Any] = {"mockData": True, "volume": {"claimName": "models"}}
TRAINED = (
    *("nemotron-h-4b", "nemotron-nano2-9b", "nemotron3-nano-4b", "nemotron3-nano-30b-a3b"),
    *("nemotron3.5-lightning", "nemotron3-super-120b-a12b", "nemotron3-ultra-550b-a55b"),
)
GPUS = {"nemotron3-super-120b-a12b": 32, "nemotron3-ultra-550b-a55b": 256}
"""H100s on which a model fits, where 8 are too few."""
ADAPTED = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj"]


def planned(recipe: str, accelerator: str, count: int = 8, **spec: Any) -> PlannedRun:
    asked = {"recipe": recipe, "accelerator": {"type": accelerator, "count": count}, "data": MOCK}
    entry = catalog.load().get(recipe)
    if entry.fine_tunes:
        asked["init"] = INIT
    elif bridge_pretraining.reads_model_folder(entry):
        asked["init"] = {"modelFolder": "/data/model"}
    config = PlatformConfig.model_validate(PLATFORM)
    return admit("run", MegatronRecipeSpec.model_validate(asked | spec), config, catalog.load())


def overrides(recipe: str, accelerator: str, count: int = 8, **spec: Any) -> dict[str, Value]:
    return dict(BridgeRun.from_arguments(planned(recipe, accelerator, count, **spec).arguments).overrides)


def refusal(recipe: str, accelerator: str, count: int = 8, **spec: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(recipe, accelerator, count, **spec), "")
    (error,) = refused.value.errors
    return f"{error.field}: {error.message}; {error.fix}"


@pytest.mark.parametrize("mode", ["", "-sft", "-lora"])
@pytest.mark.parametrize("accelerator", ["cpu", "with-kernels"])
@pytest.mark.parametrize("recipe", TRAINED)
def test_a_hybrid_model_is_started_on_cpus_and_where_the_image_has_the_kernels(
    recipe: str, accelerator: str, mode: str
) -> None:
    run = planned(f"{recipe}{mode}", accelerator, 8 if accelerator == "cpu" else GPUS.get(recipe, 8))
    job = manifests.build(run, "").job
    assert job["kind"] == "PyTorchJob"
    assert BridgeRun.from_arguments(run.arguments).overrides["checkpoint.save"] == "/checkpoints/run"


@pytest.mark.parametrize("recipe", TRAINED)
def test_a_hybrid_model_is_refused_on_other_gpus_with_the_field_that_names_the_kernels(recipe: str) -> None:
    refused = refusal(recipe, "h100-sxm", GPUS.get(recipe, 8))
    assert "not started: on GPUs the trainer's image lacks kernels that it needs: mamba-ssm" in refused
    assert refused.startswith("spec.recipe: ")
    assert "add mamba-ssm to imageHas of profile h100-sxm if its image has them" in refused


def test_a_hybrid_model_is_planned_on_gpus_without_the_kernels_as_its_function_lays_it_out() -> None:
    run = planned("nemotron-nano2-9b", "h100-sxm", 2)
    assert run.plan.tensor_model_parallel_size == 2
    assert run.plan.expected is not None
    assert run.arguments[0] == "torchrun"


@pytest.mark.parametrize(
    ("function", "recipe", "reason"),
    [
        (
            "nemotron_3_nano_gb200_pretrain_config",
            "nemotron3-nano-30b-a3b",
            "reads a model's folder, which the other functions of its recipe do not",
        ),
        (
            "nemotron_3_5_lightning_pretrain_8k_fsdp_config",
            "nemotron3.5-lightning",
            "shards by Megatron's FSDP, whose checkpoints are in another format",
        ),
    ],
)
def test_a_function_unlike_the_others_of_its_recipe_is_not_started(
    function: str, recipe: str, reason: str
) -> None:
    refused = refusal(function, "with-kernels", 16)
    assert f"{function} {reason}" in refused
    assert refused.endswith(f"name the recipe instead: {recipe}")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("nemotron-nano2-9b-lora", ADAPTED),
        ("nemotron-h-4b-lora", ADAPTED),
        ("nemotron3-nano-4b-lora", ["linear_qkv", "linear_proj"]),
        ("nemotron3-nano-30b-a3b-lora", ["linear_qkv", "linear_proj", "in_proj", "out_proj"]),
    ],
)
def test_adapters_are_on_the_functions_layers_but_for_experts(recipe: str, expected: list[str]) -> None:
    assert overrides(recipe, "cpu", 2)["peft.target_modules"] == expected


def test_adapters_of_state_space_layers_can_be_chosen_and_are_refused_where_there_are_none() -> None:
    chosen = {"targetModules": ["out_proj", "linear_proj"]}
    found = overrides("nemotron3-nano-4b-lora", "cpu", 2, peft=chosen)
    assert found["peft.target_modules"] == ["out_proj", "linear_proj"]
    refused = refusal("llama3.2-1b-lora", "cpu", 2, peft=chosen)
    assert refused.startswith("spec.peft.targetModules: llama3.2-1b-lora has no out_proj")


def test_dora_of_a_projection_that_bridge_cannot_save_is_refused_and_taken_without_it() -> None:
    refused = refusal("nemotron-nano2-9b-lora", "cpu", 2, peft={"type": "dora"})
    assert refused.startswith(
        "spec.peft.targetModules: DoRA on in_proj of nemotron-nano2-9b-lora cannot be saved"
    )
    others = [name for name in ADAPTED if name != "in_proj"]
    assert refused.endswith(f"set {', '.join(others)}, or type lora")
    found = overrides("nemotron-nano2-9b-lora", "cpu", 2, peft={"type": "dora", "targetModules": others})
    assert found["peft.target_modules"] == others

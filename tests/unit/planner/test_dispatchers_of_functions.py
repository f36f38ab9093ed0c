"""Functions of Megatron-Bridge with the dispatcher flex, where the image lacks its package."""

from typing import Any, get_args

import pytest
from megatron_contract.bridge_run import BridgeRun
from megatron_operator import catalog
from megatron_operator.api.platform import ImagePackage, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import PlannedRun, admit

PLATFORM: dict[str, Any] = {
    "bridgeImage": "bridge",
    "accelerators": {
        "h100-sxm": {"imageHas": ["mamba-ssm"]},
        "with-deepep": {"hardware": "h100-sxm", "imageHas": ["mamba-ssm", "deepep"]},
        "with-hybridep": {"hardware": "h100-sxm", "imageHas": ["mamba-ssm", "hybridep"]},
        "cpu": {"platform": "cpu"},
    },
}
DISPATCHER = "model.moe_token_dispatcher_type"
CASES = [
    ("moonlight_16b_sft_8gpu_h100_bf16_tp1_config", "hybridep"),
    ("k-exaone-236b-a23b", "deepep"),
    ("k-exaone-236b-a23b-sft", "deepep"),
    ("k-exaone-236b-a23b-lora", "deepep"),
    ("qwen3_30b_a3b_sft_8gpu_h100_bf16_config", "deepep"),
    ("qwen3-235b-a22b-lora", "deepep"),
    ("nemotron3-nano-30b-a3b", "hybridep"),
    ("nemotron3-nano-30b-a3b-lora", "deepep"),
]


def planned(recipe: str, accelerator: str) -> PlannedRun:
    entry = catalog.load().get(recipe)
    init: dict[str, Any] = {"modelFolder": "/data/model"}
    if entry.fine_tunes:
        init["from"] = {"megatron": {"path": "/data/weights"}}
    if recipe.startswith("nemotron") and not entry.fine_tunes:
        init = {}
    spec = {
        **{"recipe": recipe, "accelerator": {"type": accelerator, "count": entry.layouts[-1].count}},
        **{"init": init, "data": {"mockData": True, "volume": {"claimName": "models"}}},
    }
    config = PlatformConfig.model_validate(PLATFORM)
    return admit("run", MegatronRecipeSpec.model_validate(spec), config, catalog.load())


def dispatcher(run: PlannedRun) -> object:
    return BridgeRun.from_arguments(run.arguments).overrides.get(DISPATCHER)


@pytest.mark.parametrize(("recipe", "package"), CASES)
def test_alltoall_replaces_a_dispatcher_whose_package_the_image_lacks_and_a_note_names_it(
    recipe: str, package: str
) -> None:
    run = planned(recipe, "h100-sxm")
    assert dispatcher(run) == "alltoall"
    (note,) = [note for note in run.plan.notes if "the dispatcher flex" in note]
    assert note.startswith("left out of ")
    assert note.endswith(
        f"the dispatcher flex, whose package for {package} the image lacks; alltoall is used"
    )


@pytest.mark.parametrize(("recipe", "package"), CASES)
def test_a_function_keeps_its_dispatcher_where_the_image_has_the_package(recipe: str, package: str) -> None:
    run = planned(recipe, f"with-{package}")
    assert dispatcher(run) is None
    assert not [note for note in run.plan.notes if "the dispatcher flex" in note]


def test_a_cpu_has_its_own_dispatcher() -> None:
    run = planned("nemotron3-nano-30b-a3b-lora", "cpu")
    assert dispatcher(run) is None
    assert not [note for note in run.plan.notes if "whose package" in note]


def test_functions_that_are_started_need_no_more_of_these_packages_than_the_dispatcher() -> None:
    profile = PlatformConfig.model_validate(PLATFORM).accelerators["h100-sxm"]
    every = profile.model_copy(update={"image_has": [*get_args(ImagePackage)]})
    needing = {
        str(layout.function): [each.setting for each in layout.left_out or () if each.needs]
        for entry in (entry.on(every) for entry in catalog.load() if entry.engine == "bridge")
        for layout in entry.layouts
        if entry.can_start(layout)
    }
    assert {tuple(settings) for settings in needing.values()} == {(), ("the dispatcher flex",)}

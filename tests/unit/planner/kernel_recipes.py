"""Recipes of Megatron-Bridge whose layers need kernels that the GPU image lacks, on several profiles."""

from typing import Any

import pytest
from megatron_operator import catalog, manifests
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.planner import PlannedRun, admit

INIT: dict[str, Any] = {"modelFolder": "/data/model"}
WEIGHTS: dict[str, Any] = {"from": {"megatron": {"path": "/data/weights"}}}
MOCK: dict[str, Any] = {"mockData": True, "volume": {"claimName": "models"}}


def platform(kernels: str) -> PlatformConfig:
    """H100s without kernels, with them, and with expert dispatchers too; and CPUs."""
    accelerators: dict[str, Any] = {
        "h100-sxm": {},
        "kernels": {"hardware": "h100-sxm", "imageHas": [kernels]},
        "kernels-and-dispatchers": {"hardware": "h100-sxm", "imageHas": [kernels, "deepep", "hybridep"]},
        "cpu": {"platform": "cpu"},
    }
    return PlatformConfig.model_validate({"bridgeImage": "bridge", "accelerators": accelerators})


def planned(config: PlatformConfig, recipe: str, accelerator: str, count: int, **spec: Any) -> PlannedRun:
    """A recipe with mock data and the folder of its model; one that fine-tunes has weights."""
    init = INIT | (WEIGHTS if catalog.load().get(recipe).fine_tunes else {})
    asked = {
        "recipe": recipe,
        "accelerator": {"type": accelerator, "count": count},
        "data": MOCK,
        "init": init,
    }
    return admit("run", MegatronRecipeSpec.model_validate(asked | spec), config, catalog.load())


def refusal(config: PlatformConfig, recipe: str, accelerator: str, count: int, **spec: Any) -> str:
    """The only error of a recipe that is refused: field, message and fix."""
    with pytest.raises(InvalidRecipeError) as refused:
        manifests.build(planned(config, recipe, accelerator, count, **spec), "")
    (error,) = refused.value.errors
    return f"{error.field}: {error.message}; {error.fix}"

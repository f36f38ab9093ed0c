"""Fixture that resolves recipes for the planner tests."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import AcceleratorProfile, PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog.resolved import ResolvedRecipe

PLATFORM = PlatformConfig.model_validate(
    {
        "accelerators": {
            "h100-sxm": {},
            "a100-80": {},
            "h200": {},
            "h100-pcie": {},
            "l40s": {},
            "rtx-pro-6000": {},
            "unheard-of": {},
            "gb200": {"perNode": 4},
            "cpu": {"platform": "cpu", "perNode": 2, "resourceName": None},
        },
        "image": "trainer",
    }
)

Resolve = Callable[..., ResolvedRecipe]


@pytest.fixture
def resolve() -> Resolve:
    """`resolve("llama3-8b", 64, parallelism={...})`: the resolved recipe, on mock data."""

    def resolved(
        recipe: str | None,
        count: int,
        accelerator: str = "h100-sxm",
        per_node: int | None = None,
        profile: dict[str, Any] | None = None,
        **spec: Any,
    ) -> ResolvedRecipe:
        asked = {"type": accelerator, "count": count} | ({"perNode": per_node} if per_node else {})
        body = {"recipe": recipe, "accelerator": asked, "data": {"mockData": True}} | spec
        platform = PLATFORM
        if profile is not None:
            described = {accelerator: AcceleratorProfile.model_validate(profile)}
            platform = PLATFORM.model_copy(update={"accelerators": PLATFORM.accelerators | described})
        return catalog.resolve(MegatronRecipeSpec.model_validate(body), platform, catalog.load())

    return resolved

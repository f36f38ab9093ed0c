"""Pod placement: what a recipe sets, and what the platform requires."""

from collections.abc import Callable

import pytest
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.catalog import ResolvedRecipe

Resolve = Callable[..., ResolvedRecipe]
Refusal = Callable[..., dict[str, str]]


@pytest.fixture
def racks(platform: PlatformConfig) -> PlatformConfig:
    """The platform, whose accelerator has racks in blocks and requires one rack."""
    profile = platform.accelerators["h100"].model_copy(
        update={"topology": ["rack", "block"], "required_topology": "rack"}
    )
    return platform.model_copy(update={"accelerators": platform.accelerators | {"h100": profile}})


def test_a_recipe_has_the_platforms_required_level(resolve: Resolve, racks: PlatformConfig) -> None:
    resolved = resolve(recipe="small-1", platform=racks)
    assert resolved.scheduling.required_topology == "rack"
    assert resolved.origins["scheduling.requiredTopology"] == "platform"


def test_a_recipe_may_require_another_level(resolve: Resolve, racks: PlatformConfig) -> None:
    resolved = resolve(recipe="small-1", platform=racks, scheduling={"requiredTopology": "block"})
    assert resolved.scheduling.required_topology == "block"
    assert resolved.scheduling.topology == ["rack", "block"]


def test_a_required_level_outside_of_the_topology_is_refused(refusal: Refusal, racks: PlatformConfig) -> None:
    found = refusal(recipe="small-1", platform=racks, scheduling={"requiredTopology": "zone"})
    message = found["spec.scheduling.requiredTopology"]
    assert "'zone' is not in topology (rack, block)" in message
    assert "require one of its keys, or add it to scheduling.topology" in message


def test_a_topology_without_what_the_platform_requires_is_refused(
    refusal: Refusal, racks: PlatformConfig
) -> None:
    found = refusal(recipe="small-1", platform=racks, scheduling={"topology": ["block"]})
    message = found["spec.scheduling.topology"]
    assert "block lacks rack, which the platform requires of accelerator h100" in message
    assert "set requiredTopology to one of these keys" in message

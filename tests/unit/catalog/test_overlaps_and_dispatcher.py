"""Overlaps of the catalog without what they need, and a dispatcher without its package."""

from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import ResolvedRecipe
from megatron_operator.planner import plan

LLAMA = {"recipe": "llama3-8b", "accelerator": {"type": "h100-sxm", "count": 16}}
MIXTRAL = {"recipe": "mixtral-8x7b", "accelerator": {"type": "h100-sxm", "count": 64}}


def resolved(spec: dict[str, Any], has: tuple[str, ...] = ()) -> ResolvedRecipe:
    platform = PlatformConfig.model_validate(
        {"accelerators": {"h100-sxm": {"imageHas": list(has)}}, "image": "trainer"}
    )
    asked = MegatronRecipeSpec.model_validate(spec | {"data": {"mockData": True}})
    return catalog.resolve(asked, platform, catalog.load())


@pytest.mark.parametrize("need", ["useDistributedOptimizer", "overlapGradReduce"])
def test_an_overlap_of_the_catalog_goes_off_with_what_it_needs(need: str) -> None:
    made = plan(resolved(LLAMA | {"parallelism": {need: False}}))
    assert not made.overlap_param_gather
    note = f"overlapParamGather of the catalog is off: it requires {need}, which is false"
    assert note in made.notes


@pytest.mark.parametrize("off", [{}, {"parallelism": {"sequenceParallel": False}}])
def test_a_tensor_overlap_of_the_catalog_goes_off_in_deterministic_mode(off: dict[str, Any]) -> None:
    function = {
        "recipe": "llama3_70b_pretrain_32gpu_h100_bf16_config",
        "accelerator": {"type": "h100-sxm", "count": 32},
    }
    assert resolved(function).parallelism.tp_comm_overlap
    found = resolved(function | off | {"megatronArgs": {"deterministic-mode": True}})
    assert found.parallelism.tp_comm_overlap is False
    notes = [note for note in plan(found).notes if "tpCommOverlap" in note]
    assert notes == ["tpCommOverlap of the catalog is off: Megatron refuses it with deterministic-mode"]


def test_an_overlap_of_the_recipe_itself_is_refused_without_what_it_needs() -> None:
    both = {"useDistributedOptimizer": False, "overlapParamGather": True}
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved(LLAMA | {"parallelism": both}))
    assert [error.field for error in refused.value.errors] == ["spec.parallelism.overlapParamGather"]


@pytest.mark.parametrize(
    ("args", "has", "lacks"),
    [
        ({}, (), "deepep"),
        ({}, ("hybridep",), "deepep"),
        ({}, ("deepep",), None),
        ({"moe-flex-dispatcher-backend": "hybridep"}, ("hybridep",), None),
        ({"moe-flex-dispatcher-backend": "hybridep"}, ("deepep",), "hybridep"),
    ],
)
def test_flex_needs_the_package_of_its_backend(
    args: dict[str, Any], has: tuple[str, ...], lacks: str | None
) -> None:
    spec = MIXTRAL | {"model": {"moeTokenDispatcherType": "flex"}, "megatronArgs": args}
    if lacks is None:
        assert resolved(spec, has).model.moe_token_dispatcher_type == "flex"
        return
    with pytest.raises(InvalidRecipeError) as refused:
        resolved(spec, has)
    assert [error.message for error in refused.value.errors] == [
        f"flex: the trainer image lacks the package of its backend {lacks}"
    ]


def test_an_image_of_the_recipe_may_have_the_package() -> None:
    spec = MIXTRAL | {"model": {"moeTokenDispatcherType": "flex"}, "image": "mine:1"}
    assert resolved(spec).model.moe_token_dispatcher_type == "flex"

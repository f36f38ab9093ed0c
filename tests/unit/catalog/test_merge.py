"""Settings of a higher layer replace those of a lower one, with what only makes sense beside them."""

from typing import Any

import pytest
from megatron_operator.catalog.merge import merge_layers, overlay

SELECTIVE = {"recomputeGranularity": "selective", "recomputeModules": ["mla_up_proj"]}
FULL = {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1}
FP8 = {
    "fp8Format": "hybrid",
    "fp8Recipe": "delayed",
    "fp8AmaxHistoryLen": 1024,
    "fp8AmaxComputeAlgo": "max",
    "fp8ParamGather": True,
}
FP4 = {"fp4Format": "e2m1", "fp4ParamGather": True}


@pytest.mark.parametrize(
    ("top", "merged"),
    [
        (FULL, FULL),
        ({"recomputeMethod": "uniform"}, {"recomputeMethod": "uniform"}),
        ({"recomputeGranularity": None}, {}),
        ({"recomputeGranularity": "selective"}, SELECTIVE),
        ({"recomputeModules": ["moe_act"]}, SELECTIVE | {"recomputeModules": ["moe_act"]}),
    ],
)
def test_recomputed_modules_stay_with_selective_recomputation_alone(
    top: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert overlay("parallelism", SELECTIVE, top) == merged


def test_selective_recomputation_replaces_that_of_whole_layers() -> None:
    assert overlay("parallelism", FULL, SELECTIVE) == SELECTIVE


def test_modules_of_the_same_layer_are_left_for_the_planner_to_refuse() -> None:
    both = FULL | {"recomputeModules": ["mla_up_proj"]}
    assert overlay("parallelism", SELECTIVE, both) == both


@pytest.mark.parametrize(
    ("base", "top", "merged"),
    [
        (FP8, {"fp4Format": "e2m1"}, {"fp4Format": "e2m1"}),
        (FP4, {"fp8Format": "hybrid"}, {"fp8Format": "hybrid"}),
        (FP8, {"fp8Format": "e4m3"}, FP8 | {"fp8Format": "e4m3"}),
        (FP8, FP4 | FP8, FP4 | FP8),
    ],
)
def test_one_format_of_low_precision_replaces_the_other_with_its_scaling(
    base: dict[str, Any], top: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert overlay("training", base, top) == merged


def test_no_layers_of_multi_token_prediction_are_as_if_the_catalog_had_none() -> None:
    layers = [("catalog", {"model": {"mtpNumLayers": 1}}), ("recipe", {"model": {"mtpNumLayers": 0}})]
    merged, origins = merge_layers(layers)
    assert merged["model"] == {}
    assert origins == {}

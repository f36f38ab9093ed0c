"""A layout whose estimate exceeds the memory by less than 1 %: the same verdict everywhere."""

import re
from functools import cache

import pytest
from megatron_operator import catalog
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.cli.default_platform import default_platform
from megatron_operator.cli.starter import Request, starter
from megatron_operator.planner import PlannedRun, admit
from megatron_operator.planner.candidates import Query
from megatron_operator.planner.notes import beyond_memory
from megatron_operator.planner.recommend import Recommendation, recommend

LIBRARY = catalog.load()
RECIPE, COUNT = "mistral-small-24b", 8


def platform_with(gib: float) -> PlatformConfig:
    """Nodes of eight accelerators like an H100, with so much memory each."""
    sheet = {
        **{"architecture": "hopper", "memoryGiB": gib, "bf16Teraflops": 989, "memoryGBps": 3350},
        **{"linkGBps": 450, "domain": 8, "networkGBps": 50},
    }
    return PlatformConfig.model_validate({"accelerators": {"own": {"dataSheet": sheet}}, "image": "trainer"})


def admitted(gib: float, **parallelism: int) -> PlannedRun:
    spec = {"recipe": RECIPE, "accelerator": {"count": COUNT}, "data": {"mockData": True}}
    body = spec | ({"parallelism": parallelism} if parallelism else {})
    return admit("run", MegatronRecipeSpec.model_validate(body), platform_with(gib), LIBRARY)


@cache
def needed() -> float:
    """GiB of the most memory-efficient layout."""
    with pytest.raises(InvalidRecipeError, match="most memory-efficient") as refused:
        admitted(5)
    found = re.search(r"needs ([\d.]+) GiB", str(refused.value))
    assert found is not None
    return float(found[1])


def recommended(gib: float) -> Recommendation:
    return recommend(Query(RECIPE, COUNT, None, "pretrain", None), platform_with(gib), LIBRARY)[0]


def test_a_searched_layout_is_planned_with_a_warning() -> None:
    run = admitted(needed() / 1.005)
    [warning] = [each for each in run.warnings if each.startswith("memory may not suffice: ")]
    assert warning in run.plan.notes
    assert beyond_memory(run.plan) is not None


def test_a_requested_layout_is_planned_with_the_same_warning() -> None:
    gib = needed() / 1.005
    sizes = admitted(gib).plan
    same = admitted(
        gib,
        tensorModelParallelSize=sizes.tensor_model_parallel_size,
        pipelineModelParallelSize=sizes.pipeline_model_parallel_size,
    )
    assert same.plan.memory_per_gpu == sizes.memory_per_gpu
    assert [each for each in same.warnings if each.startswith("memory may not suffice: ")]


def test_a_recommendation_has_the_warning_and_can_be_started() -> None:
    best = recommended(needed() / 1.005)
    assert best.runnable
    assert [each for each in best.reasons if each.startswith("memory may not suffice: ")]


def test_a_larger_overflow_is_refused_by_all() -> None:
    gib = needed() / 1.02
    with pytest.raises(InvalidRecipeError, match="even the most memory-efficient layout"):
        admitted(gib)
    best = recommended(gib)
    assert best.plan is None
    assert "even the most memory-efficient layout" in best.reasons[0]


def test_a_first_recipe_is_for_a_count_on_which_a_layout_fits_without_a_warning() -> None:
    """The recipe has no published layout, and eight accelerators are 0.5 % short of memory."""
    gib = needed() / 1.005
    text = starter(Request(RECIPE, None, None, None), platform_with(gib), LIBRARY)
    count = re.search(r"count: (\d+)", text)
    assert count is not None
    assert int(count[1]) == 2 * COUNT


def with_all_sizes(gib: float) -> PlannedRun:
    """States of 58.3 GiB, and the activations of four samples in a micro batch."""
    sizes = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
    spec = {"recipe": "llama3-8b", "accelerator": {"count": COUNT}, "data": {"mockData": True}}
    asked = MegatronRecipeSpec.model_validate(
        spec | {"parallelism": sizes, "training": {"microBatchSize": 4}}
    )
    return admit("run", asked, platform_with(gib), LIBRARY)


def test_a_layout_that_a_recipe_sets_completely_is_refused_far_above_the_memory() -> None:
    memory = with_all_sizes(200).plan.memory_per_gpu
    assert memory is not None
    gib = memory.total / 2**30
    tight = with_all_sizes(gib / 1.14)
    assert [each for each in tight.warnings if each.startswith("memory may not suffice: ")]
    with pytest.raises(InvalidRecipeError, match="TP 1, PP 1, CP 1, DP 8 needs"):
        with_all_sizes(gib / 1.16)


@pytest.mark.parametrize(
    ("recipe", "count", "warnings"),
    [
        ("glm5.2", 416, ["published layout used, although the planner rejects it: spec.parallelism.num"]),
        ("nemotron-h-56b", 8, ["memory may not suffice: "]),
    ],
)
def test_a_published_layout_that_the_planner_rejects_is_planned_with_one_warning_of_it(
    recipe: str, count: int, warnings: list[str]
) -> None:
    accelerator = {"type": "h100-sxm", "count": count}
    spec = {"recipe": recipe, "accelerator": accelerator, "data": {"mockData": True}}
    run = admit("run", MegatronRecipeSpec.model_validate(spec), default_platform(), LIBRARY)
    found = [each for each in run.warnings if each.startswith(("published layout used", "memory may"))]
    assert [each[: len(text)] for each, text in zip(found, warnings, strict=True)] == warnings
    assert {*found} <= {*run.plan.notes}

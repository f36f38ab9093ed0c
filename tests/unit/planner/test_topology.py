"""Runs that are larger than one domain of the topology level that their pods must share."""

from collections.abc import Callable

import pytest
from megatron_operator import planner
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.catalog import ResolvedRecipe

Resolve = Callable[..., ResolvedRecipe]
CLIQUE, HOST, RACK = "nvidia.com/gpu.clique", "kubernetes.io/hostname", "example.com/rack"


@pytest.mark.parametrize(
    ("accelerator", "count", "key", "message"),
    [
        ("gb200", 128, CLIQUE, "the run has 128 accelerators, and an NVLink domain of gb200 has 72"),
        ("h100-sxm", 16, HOST, "the run has 16 accelerators, and a node of h100-sxm has 8"),
        ("h100-sxm", 16, CLIQUE, "the run has 16 accelerators, and an NVLink domain of h100-sxm has 8"),
    ],
)
def test_a_run_larger_than_a_domain_of_known_size_is_refused(
    resolve: Resolve, accelerator: str, count: int, key: str, message: str
) -> None:
    scheduling = {"topology": [key], "requiredTopology": key}
    with pytest.raises(InvalidRecipeError) as refused:
        planner.plan(resolve("llama3-8b", count, accelerator, scheduling=scheduling))
    [error] = refused.value.errors
    assert error.field == "spec.scheduling.requiredTopology"
    assert error.message == f"{key}: {message}"
    assert error.fix.startswith("require a wider level of topology, or set accelerator.count to at most")


@pytest.mark.parametrize(
    ("accelerator", "count", "key"),
    [("gb200", 64, CLIQUE), ("h100-sxm", 8, HOST), ("h100-sxm", 4, CLIQUE), ("h100-sxm", 64, RACK)],
)
def test_a_run_that_a_domain_may_have_room_for_is_planned(
    resolve: Resolve, accelerator: str, count: int, key: str
) -> None:
    scheduling = {"topology": [key], "requiredTopology": key}
    per_node = 4 if accelerator == "gb200" else None
    resolved = resolve("llama3-8b", count, accelerator, per_node, scheduling=scheduling)
    assert planner.plan(resolved).world_size == count


@pytest.mark.parametrize(("count", "refused"), [(32, False), (40, True)])
def test_a_described_domain_limits_the_run_that_must_be_in_one(
    resolve: Resolve, count: int, refused: bool
) -> None:
    scheduling = {"topology": [RACK], "requiredTopology": RACK}
    profile = {"topology": [RACK], "topologyDomains": {RACK: {"nodes": 4}}}
    resolved = resolve("llama3-8b", count, scheduling=scheduling, profile=profile)
    if not refused:
        assert planner.plan(resolved).world_size == count
        return
    with pytest.raises(InvalidRecipeError) as caught:
        planner.plan(resolved)
    [error] = caught.value.errors
    assert error.field == "spec.scheduling.requiredTopology"
    assert error.message == f"{RACK}: the run has 40 accelerators, and a domain of h100-sxm has 32"
    assert error.fix == "require a wider level of topology, or set accelerator.count to at most 32"


@pytest.mark.parametrize(
    ("least", "layout", "note"),
    [
        (48, (8, 4), ("TP 8 x PP 4", "with minCount 32 it can")),
        (32, (8, 4), None),
        (48, (8, 1), None),
        (32, (8, 8), ("TP 8 x PP 8", "it can where the planner chooses them")),
        (48, (None, None), None),
    ],
)
def test_an_elastic_run_whose_sizes_divide_no_smaller_count_has_a_note(
    resolve: Resolve, least: int, layout: tuple[int | None, int | None], note: tuple[str, str] | None
) -> None:
    names = ("tensorModelParallelSize", "pipelineModelParallelSize")
    given = {name: size for name, size in zip(names, layout, strict=True) if size is not None}
    asked = resolve("llama3-8b", 64, parallelism=given, recovery={"elastic": {"minCount": least}})
    found = [each for each in planner.plan(asked).notes if "cannot shrink" in each]
    assert found == [
        f"recovery.elastic.minCount {least}: with {sizes} on 64 accelerators the run cannot shrink; {fix}"
        for sizes, fix in ([note] if note else [])
    ]


def test_sizes_of_the_catalog_do_not_keep_an_elastic_run_from_shrinking(resolve: Resolve) -> None:
    asked = resolve("llama3-70b", 64, recovery={"elastic": {"minCount": 56}})
    assert not any("cannot shrink" in each for each in planner.plan(asked).notes)

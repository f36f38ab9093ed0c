"""What the free search considers."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner.plan import _problem, plan, search
from megatron_operator.planner.search.enumerate import (
    MAX_INTERLEAVINGS,
    interleavings,
    largest_cp,
    valid_layouts,
)

FREE = {
    "tensor_model_parallel_size": None,
    "pipeline_model_parallel_size": None,
    "context_parallel_size": None,
    "expert_model_parallel_size": None,
}


def problem(resolved: Any, micro_batch: int | None = None) -> Any:
    asked = resolved.parallelism.model_copy(update=FREE)
    return _problem(resolved, asked, micro_batch, True, Diagnostics())


@pytest.mark.parametrize(
    ("seq_length", "micro_batch", "largest"),
    [(2048, 1, 1), (4096, 1, 4), (8192, 1, 4), (8192, 2, 1), (65536, 1, 8), (65536, 4, 8)],
)
def test_short_sequences_are_split_by_up_to_four(
    resolve: Callable[..., Any], seq_length: int, micro_batch: int, largest: int
) -> None:
    longest = {"maxPositionEmbeddings": 65536}
    resolved = resolve("llama3-8b", 64, model=longest, training={"seqLength": seq_length})
    assert largest_cp(problem(resolved), micro_batch) == largest


def test_context_parallelism_is_found_where_the_batch_needs_it(resolve: Callable[..., Any]) -> None:
    # 252 samples do not divide over the data-parallel ranks of PP 9 without it.
    p = plan(resolve("llama3.1-405b", 576, training={"globalBatchSize": 252}))
    assert (p.pipeline_model_parallel_size, p.context_parallel_size) == (9, 2)
    assert p.virtual_pipeline_model_parallel_size == 7
    assert p.recompute_granularity is None


def test_a_requested_size_of_context_parallelism_is_kept(resolve: Callable[..., Any]) -> None:
    p = plan(
        resolve(
            "llama3.1-405b",
            576,
            training={"globalBatchSize": 252},
            parallelism={"contextParallelSize": 1},
        )
    )
    assert p.context_parallel_size == 1


def test_the_search_ignores_the_published_layout_and_keeps_what_the_recipe_sets(
    resolve: Callable[..., Any],
) -> None:
    resolved = resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 4})
    sizes = {(c.dims.tp, c.dims.cp) for c in search(resolved).candidates}
    assert {tp for tp, _ in sizes} == {4}
    assert {cp for _, cp in sizes} >= {1, 2, 4}


def test_a_published_layout_without_context_parallelism_stays_without(resolve: Callable[..., Any]) -> None:
    p = plan(resolve("nemotron4-340b", 256))
    assert (p.pipeline_model_parallel_size, p.context_parallel_size) == (8, 1)


def test_virtual_stages_are_considered_up_to_one_layer_each(resolve: Callable[..., Any]) -> None:
    # 48 layers a stage have nine divisors above 1: some are left out, the largest is not.
    resolved = resolve("llama3-8b", 64, model={"numLayers": 96}, training={"globalBatchSize": 128})
    free = problem(resolved, 1)
    [layout] = [
        each
        for each in valid_layouts(free)
        if (each.dims.tp, each.dims.pp, each.dims.cp, each.dims.ep) == (8, 2, 1, 1)
    ]
    found = [each.dims.vp for each in interleavings(free, layout, [32])]
    assert len(found) == MAX_INTERLEAVINGS
    assert (found[0], found[-1]) == (2, 48)


def test_a_nearly_empty_last_stage_is_considered(resolve: Callable[..., Any]) -> None:
    resolved = resolve("kimi-k2", 256, training={"globalBatchSize": 4096})
    splits = {layout.dims.pp: layout.split for layout in valid_layouts(problem(resolved))}
    split = splits[16]
    assert split is not None
    assert split.layers == (4,) * 15 + (1,)


GRAPHS = {"cuda-graph-impl": "transformer_engine"}


def test_with_graphs_no_layout_recomputes_whole_layers(resolve: Callable[..., Any]) -> None:
    """Megatron supports graphs of parts of a layer without full recomputation only."""
    assert plan(resolve("llama3-70b", 16)).recompute_granularity == "full"
    with pytest.raises(InvalidRecipeError, match="excludes full recomputation, without which no layout fits"):
        plan(resolve("llama3-70b", 16, megatronArgs=GRAPHS))
    smaller = GRAPHS | {"grad-reduce-in-bf16": True, "exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"}
    aware = {"usePrecisionAwareOptimizer": True}
    found = plan(resolve("llama3-70b", 16, megatronArgs=smaller, training=aware))
    assert found.recompute_granularity != "full"

"""What the free search considers."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner.plan import _problem, plan, search
from megatron_operator.planner.search.enumerate import (
    MAX_INTERLEAVINGS,
    MAX_VIRTUAL_STAGES,
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


def test_virtual_stages_are_considered_up_to_the_most_of_a_published_layout(
    resolve: Callable[..., Any],
) -> None:
    # 60 layers a stage have nine divisors from 2 to 20: one is left out, the largest is not.
    resolved = resolve("llama3-8b", 64, model={"numLayers": 120}, training={"globalBatchSize": 128})
    free = problem(resolved, 1)
    [layout] = [
        each
        for each in valid_layouts(free)
        if (each.dims.tp, each.dims.pp, each.dims.cp, each.dims.ep) == (8, 2, 1, 1)
    ]
    found = [each.dims.vp for each in interleavings(free, layout, [32])]
    assert len(found) == MAX_INTERLEAVINGS
    assert (found[0], found[-1]) == (2, MAX_VIRTUAL_STAGES)


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


def best(resolved: Any) -> Any:
    found = search(resolved).best
    assert found is not None
    return found


def test_a_published_layout_wins_within_the_error_of_the_estimate(resolve: Callable[..., Any]) -> None:
    resolved = resolve("llama3-70b", 64, "h200")
    free = resolved.model_copy(update={"published": []})
    without, ranking = best(free), search(free)
    slower = next(
        c
        for c in ranking.candidates
        if c.is_comfortable
        and c.recompute != "full"
        and 1.02 < c.seconds / without.seconds < 1 + ranking.error
    )
    assert best(resolved.model_copy(update={"published": [slower.sizes]})).sizes == slower.sizes


def test_a_published_layout_that_is_slower_than_the_error_does_not_win(resolve: Callable[..., Any]) -> None:
    """Kimi K2 has TP 8 and EP 64 on 1,024 H100: without flex and overlap more than half of it is waiting."""
    resolved = resolve("kimi-k2", 2048)
    assert (8, 16, 1, 64) in resolved.published
    assert best(resolved).sizes != (8, 16, 1, 64)


def test_the_error_is_that_of_such_runs(resolve: Callable[..., Any]) -> None:
    """Of models with experts it is larger."""
    errors = {name: search(resolve(name, 64)).error for name in ("llama3-70b", "qwen3-30b-a3b")}
    assert 0.04 < errors["llama3-70b"] < errors["qwen3-30b-a3b"] < 0.15


def test_among_layouts_of_the_same_sizes_the_error_does_not_count(resolve: Callable[..., Any]) -> None:
    """Without virtual stages a step of 405B is 3.6 % longer: the bubble, whatever the model's error is."""
    found = best(resolve("llama3.1-405b", 2048))
    same = [c for c in search(resolve("llama3.1-405b", 2048)).candidates if c.sizes == found.sizes]
    assert found.seconds <= 1.02 * min(c.seconds for c in same if c.is_comfortable)


def test_full_recomputation_is_not_chosen_because_its_sizes_are_published(
    resolve: Callable[..., Any],
) -> None:
    resolved = resolve("qwen3-30b-a3b", 64)
    assert any(c.recompute == "full" and c.sizes in resolved.published for c in search(resolved).candidates)
    assert best(resolved).recompute != "full"


def test_overlapped_experts_with_flex_leave_room_for_what_the_estimate_lacks(
    resolve: Callable[..., Any],
) -> None:
    settings = {
        "model": {"moeTokenDispatcherType": "flex"},
        "megatronArgs": {"overlap-moe-expert-parallel-comm": True},
        "image": "trainer-with-deepep",
    }
    chosen = best(resolve("deepseek-v3", 2048, **settings))
    assert chosen.memory.total <= 0.95 * chosen.memory.capacity - 8 * 2**30
    tightest = max(
        c.memory.total for c in search(resolve("deepseek-v3", 2048)).candidates if c.is_comfortable
    )
    assert tightest > 0.94 * chosen.memory.capacity

"""Alternatives: other sizes that are slower, or faster only than a published layout."""

from typing import Any

import pytest
from megatron_operator.planner import plan, plan_and_alternatives
from megatron_operator.planner.alternatives import Alternative
from megatron_operator.planner.search import rank
from megatron_operator.planner.search.constraints import Layout
from megatron_operator.planner.search.enumerate import valid_layouts
from megatron_operator.planner.search.problem import PlanningProblem


def sizes(x: Any) -> tuple[int, int, int, int]:
    return (
        x.tensor_model_parallel_size,
        x.pipeline_model_parallel_size,
        x.context_parallel_size,
        x.expert_model_parallel_size,
    )


def of(resolved: Any) -> tuple[Any, list[Alternative]]:
    return plan_and_alternatives(resolved)


def test_the_plan_is_the_same_with_and_without_alternatives(resolve: Any) -> None:
    resolved = resolve("llama3-70b", 64)
    assert of(resolved)[0] == plan(resolved)


def test_alternatives_differ_from_the_plan_and_from_each_other(resolve: Any) -> None:
    chosen, others = of(resolve("llama3-70b", 128))
    found = [sizes(chosen), *(sizes(other) for other in others if other.fits)]
    assert len(found) == len(set(found)) > 3


def test_no_alternative_that_fits_is_much_faster_than_a_planned_layout(resolve: Any) -> None:
    chosen, others = of(resolve("llama3-70b", 128))
    fitting = [other for other in others if other.fits]
    assert all(o.expected.step_seconds > chosen.expected.step_seconds * 0.98 for o in fitting if o.expected)


def test_what_the_recipe_fixes_is_the_same_in_all_alternatives(resolve: Any) -> None:
    _, others = of(resolve("llama3-70b", 128, parallelism={"tensorModelParallelSize": 4}))
    assert others
    assert {other.tensor_model_parallel_size for other in others} == {4}


def test_a_published_layout_is_compared_with_planned_ones(resolve: Any) -> None:
    _, others = of(resolve("llama3-70b", 64))
    assert any(other.tensor_model_parallel_size != 4 for other in others)


def test_a_simpler_layout_that_does_not_fit_states_by_how_much(resolve: Any) -> None:
    _, others = of(resolve("llama3-70b", 128))
    [too_large] = [other for other in others if not other.fits]
    assert too_large.reason.startswith("does not fit: ")
    assert too_large.memory_per_gpu.total > (too_large.memory_per_gpu.capacity or 0)


def test_405b_on_16384_accelerators_is_planned(resolve: Any) -> None:
    p = plan(resolve("llama3.1-405b", 16384, training={"globalBatchSize": 2048, "seqLength": 8192}))
    assert p.world_size == 16384
    assert sum(p.stage_layers) == 126


def test_layouts_are_ranked_once_without_a_published_layout(
    resolve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rankings = []

    def counted(request: PlanningProblem) -> list[Layout]:
        rankings.append(request)
        return valid_layouts(request)

    monkeypatch.setattr(rank, "valid_layouts", counted)
    of(resolve("llama3-70b", 128))
    assert len(rankings) == 1


def test_alternatives_keep_the_catalogs_other_settings(resolve: Any) -> None:
    """GPT-OSS splits sequences with a2a only, as its entry sets."""
    chosen, others = of(resolve("gpt-oss-20b", 64, training={"seqLength": 65536, "globalBatchSize": 512}))
    assert any(other.context_parallel_size > 1 for other in [chosen, *others])

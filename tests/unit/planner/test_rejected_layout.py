"""A published layout that the settings of a recipe rule out gives way to a planned one."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.recipe import MegatronRecipeSpec
from megatron_operator.catalog import load
from megatron_operator.planner import PlannedRun, admit, megatron_arguments, plan, plan_and_alternatives

from tests.unit.planner.conftest import PLATFORM

UNFUSED = {"attentionBackend": "unfused"}
LOCAL = {"training": {"transformerImpl": "local"}, "image": "own"}


def admitted(previous: Any = None, **spec: Any) -> PlannedRun:
    body = {
        "recipe": "llama3-8b",
        "accelerator": {"type": "h100-sxm", "count": 64},
        "data": {"mockData": True},
    }
    return admit("run", MegatronRecipeSpec.model_validate(body | spec), PLATFORM, load(), previous=previous)


def refusals(resolved: Any) -> list[str]:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved)
    return [str(error) for error in refused.value.errors]


@pytest.mark.parametrize(
    ("count", "spec", "reason"),
    [
        (8, {"training": UNFUSED}, "contextParallelSize: CP 2 requires a fused kernel"),
        (64, {"training": UNFUSED}, "contextParallelSize: CP 2 requires a fused kernel"),
        (8, LOCAL, "contextParallelSize: CP 2 requires Transformer"),
        (64, {"parallelism": {"useDistributedOptimizer": False}}, "pipelineModelParallelSize: TP 1, PP 1"),
        (64, {"model": {"vocabSize": 4_000_000}}, "pipelineModelParallelSize: TP 1, PP 1"),
    ],
)
def test_a_layout_that_no_recipe_names_is_planned_where_it_is_rejected(
    resolve: Any, count: int, spec: dict[str, Any], reason: str
) -> None:
    p = plan(resolve("llama3-8b", count, **spec))
    assert p.memory_per_gpu is not None
    assert p.memory_per_gpu.total <= (p.memory_per_gpu.capacity or 0)
    assert (p.tensor_model_parallel_size, p.context_parallel_size) != (1, 2)
    [note] = [note for note in p.notes if "published layout" in note]
    not_used = f"the published layout for {count} x h100-sxm is not used"
    assert note.startswith(f"{not_used} (spec.parallelism.{reason}")


def test_virtual_stages_that_the_batch_rules_out_are_planned_otherwise(resolve: Any) -> None:
    published = plan(resolve("llama3-70b-fp8", 64))
    assert (published.virtual_pipeline_model_parallel_size, published.data_parallel_size) == (5, 2)
    p = plan(resolve("llama3-70b-fp8", 64, training={"globalBatchSize": 100}))
    stages = p.pipeline_model_parallel_size if p.virtual_pipeline_model_parallel_size else 1
    assert 100 % (p.micro_batch_size * p.data_parallel_size * stages) == 0
    assert any("interleaving needs a multiple of PP 8 micro batches" in note for note in p.notes)


def test_the_run_is_started_without_the_rejected_layout() -> None:
    run = admitted(training=UNFUSED)
    words = megatron_arguments(run.resolved, run.plan, "run")
    assert words[words.index("--context-parallel-size") + 1] == "1"
    assert run.resolved.layout is None
    assert run.resolved.parallelism.context_parallel_size is None
    assert "parallelism.contextParallelSize" not in run.resolved.origins
    assert run.resolved.parallelism.use_distributed_optimizer


def test_batch_and_learning_rate_of_the_layout_stay(resolve: Any) -> None:
    fp8 = {"recipe": "gpt-oss-20b-8k-fp8", "count": 8, "accelerator": "b300", "profile": {}}
    assert plan(resolve(**fp8)).context_parallel_size == 2
    p = plan(resolve(**fp8, training=UNFUSED))
    assert (p.context_parallel_size, p.global_batch_size) == (1, 4)


def test_what_the_recipe_itself_sets_is_not_planned_otherwise(resolve: Any) -> None:
    own = resolve("llama3-8b", 64, training=UNFUSED, parallelism={"contextParallelSize": 2})
    [line] = refusals(own)
    assert line.startswith("spec.parallelism.contextParallelSize: CP 2 requires a fused kernel")
    batch = resolve("llama3-8b", 64, training={"microBatchSize": 16, "globalBatchSize": 512})
    [line] = refusals(batch)
    assert line.startswith("spec.training.microBatchSize: 16: TP 1, PP 1, CP 2, DP 32 needs")


def test_a_recipe_that_no_layout_suits_has_the_errors_without_the_published_one(resolve: Any) -> None:
    [line] = refusals(resolve("llama3-8b", 8, model={"vocabSize": 10_000_000, "hiddenDropout": 0.1}))
    assert line.startswith("spec.accelerator.count: on 8 accelerators even the most memory-efficient layout")


def test_other_layouts_are_not_compared_with_the_rejected_one(resolve: Any) -> None:
    resolved = resolve("llama3-8b", 64, training=UNFUSED)
    chosen, others = plan_and_alternatives(resolved)
    assert chosen == plan(resolved)
    assert others
    assert not any("published" in other.reason for other in others)


def test_a_run_goes_on_without_a_layout_that_an_edit_rules_out() -> None:
    before = admitted().plan
    assert before.context_parallel_size == 2
    run = admitted(before, training=UNFUSED)
    assert run.plan.context_parallel_size == 1
    assert admitted(run.plan, training=UNFUSED).plan == run.plan

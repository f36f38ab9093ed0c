"""A run that has started keeps its layout as long as the recipe allows it."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan
from megatron_operator.planner.retention import same_layout

OTHER = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 2, "contextParallelSize": 1}
ALONE = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
SELECTIVE = ALONE | {"recomputeGranularity": "selective"}
TERABYTE = 1 << 40


def with_memory(p: Any, size: int) -> Any:
    """The plan, as if its run had trained with activations of `size` bytes."""
    memory = p.memory_per_gpu.model_copy(update={"activations": size, "total": 2 * size})
    return p.model_copy(update={"memory_per_gpu": memory})


def total(p: Any) -> int:
    return int(p.memory_per_gpu.total)


def capacity(p: Any) -> int:
    return int(p.memory_per_gpu.capacity)


def layout(p: Any) -> tuple[int, ...]:
    return p.tensor_model_parallel_size, p.pipeline_model_parallel_size, p.context_parallel_size


def test_the_same_recipe_has_the_same_plan(resolve: Any) -> None:
    first = plan(resolve("llama3-8b", 64))
    assert plan(resolve("llama3-8b", 64), first) == first


def test_a_run_keeps_a_layout_that_would_no_longer_be_chosen(resolve: Any) -> None:
    before = plan(resolve("llama3-8b", 64, parallelism=OTHER))
    after = plan(resolve("llama3-8b", 64), before)
    assert same_layout(after, before)
    assert any("the layout of the running job is kept; a new plan would use TP" in n for n in after.notes)
    assert plan(resolve("llama3-8b", 64), after) == after


def test_a_published_layout_does_not_replace_that_of_a_run(resolve: Any) -> None:
    before = plan(resolve("llama3-70b", 64, parallelism=OTHER))
    assert layout(plan(resolve("llama3-70b", 64), before)) == (8, 2, 1)


def test_another_count_only_changes_data_parallelism(resolve: Any) -> None:
    before = plan(resolve("llama3-8b", 64, parallelism=OTHER))
    after = plan(resolve("llama3-8b", 32), before)
    assert layout(after) == layout(before)
    assert (before.data_parallel_size, after.data_parallel_size) == (4, 2)


def test_settings_of_the_recipe_override_the_layout_of_the_run(resolve: Any) -> None:
    before = plan(resolve("llama3-8b", 64, parallelism=OTHER))
    after = plan(resolve("llama3-8b", 64, parallelism={"tensorModelParallelSize": 2}), before)
    assert layout(after) == (2, 2, 1)


def test_a_layout_that_is_no_longer_valid_is_replaced(resolve: Any) -> None:
    before = plan(resolve("llama3-8b", 64, parallelism=OTHER))
    after = plan(resolve("llama3-8b", 8), before)
    assert layout(after) != layout(before)
    assert after.world_size == 8


def test_a_recipe_that_cannot_run_has_its_own_errors(resolve: Any) -> None:
    before = plan(resolve("llama3-8b", 64))
    with pytest.raises(InvalidRecipeError, match="12 is not a multiple of the 8 accelerators"):
        plan(resolve("llama3-8b", 12), before)


def test_interleaving_is_neither_added_nor_removed(resolve: Any) -> None:
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 4, "contextParallelSize": 1}
    plain = plan(
        resolve(
            "llama3-70b", 64, parallelism=sizes | {"pipelineModelParallelLayout": "Et*20|t*20|t*20|t*20L"}
        )
    )
    assert plan(resolve("llama3-70b", 64), plain).virtual_pipeline_model_parallel_size is None
    chunks = plan(resolve("llama3-70b", 64, parallelism=sizes | {"numVirtualStagesPerPipelineRank": 5}))
    assert plan(resolve("llama3-70b", 64), chunks).virtual_pipeline_model_parallel_size == 5


LORA = "llama3.1-70b-lora"
OF_A_RUN = {
    "tensorModelParallelSize": 2,
    "pipelineModelParallelSize": 4,
    "numVirtualStagesPerPipelineRank": 20,
}


def bridge_run(resolve: Any, count: int = 16) -> Any:
    """The plan of a run of Megatron-Bridge whose layout a new plan would not have."""
    before = plan(resolve(LORA, count, parallelism=OF_A_RUN))
    assert not same_layout(plan(resolve(LORA, count)), before)
    return before


def test_a_run_of_megatron_bridge_keeps_its_layout_when_it_is_extended(resolve: Any) -> None:
    before = bridge_run(resolve)
    after = plan(resolve(LORA, 16, training={"trainIters": 2000}), before)
    assert same_layout(after, before)
    assert after.train_iters == 2000
    assert any("the layout of the running job is kept; a new plan would use TP" in n for n in after.notes)
    assert sum("run by Megatron-Bridge" in note for note in after.notes) == 1


def test_sizes_of_the_recipe_override_those_of_a_run_of_megatron_bridge(resolve: Any) -> None:
    asked = OF_A_RUN | {"tensorModelParallelSize": 4, "numVirtualStagesPerPipelineRank": 10}
    assert layout(plan(resolve(LORA, 16, parallelism=asked), bridge_run(resolve))) == (4, 4, 1)


def test_a_layout_of_megatron_bridge_that_no_longer_fits_the_recipe_is_replaced(resolve: Any) -> None:
    asked = OF_A_RUN | {"pipelineModelParallelSize": 8, "numVirtualStagesPerPipelineRank": 10}
    before = plan(resolve(LORA, 16, parallelism=asked))
    assert layout(plan(resolve(LORA, 8), before)) == layout(plan(resolve(LORA, 8)))


def test_a_run_of_megatron_bridge_does_not_take_over_context_parallelism(resolve: Any) -> None:
    sizes = {"tensorModelParallelSize": 4, "pipelineModelParallelSize": 2, "contextParallelSize": 2}
    before = plan(resolve("llama3-8b", 16, parallelism=sizes))
    assert layout(plan(resolve(LORA, 16), before)) == layout(plan(resolve(LORA, 16)))


def test_a_run_whose_samples_are_packed_from_now_on_has_micro_batches_of_one(resolve: Any) -> None:
    data = {"datasetRoot": "chats", "volume": {"claimName": "corpus"}}
    before = plan(resolve("llama3.2-1b-lora", 2, data=data, training={"microBatchSize": 2}))
    after = plan(resolve("llama3.2-1b-lora", 2, data=data | {"packing": True}), before)
    assert after.micro_batch_size == 1


def test_a_run_goes_on_whose_layout_would_now_be_refused_for_its_memory(resolve: Any) -> None:
    def asked(micro_batch: int) -> Any:
        return resolve("llama3-8b", 8, parallelism=ALONE, training={"microBatchSize": micro_batch})

    with pytest.raises(InvalidRecipeError):
        plan(asked(16))
    assert plan(asked(16), with_memory(plan(asked(2)), TERABYTE)).micro_batch_size == 16
    with pytest.raises(InvalidRecipeError):
        plan(asked(16), plan(asked(2)))


def test_a_run_does_not_go_on_with_longer_sequences_than_the_memory_has_sufficed_for(resolve: Any) -> None:
    training = {"microBatchSize": 2}
    running = plan(resolve("llama3-8b", 8, parallelism=ALONE, training=training))
    longer = {
        "training": training | {"seqLength": 131072},
        "model": {"maxPositionEmbeddings": 131072},
    }
    with pytest.raises(InvalidRecipeError, match="TP 1, PP 1, CP 1, DP 8 needs"):
        plan(resolve("llama3-8b", 8, parallelism=ALONE, **longer), running)


def test_an_elastic_run_shrinks_and_grows_though_its_layout_would_now_be_refused(resolve: Any) -> None:
    def asked(count: int) -> Any:
        return resolve("llama3-8b", count, parallelism=SELECTIVE, training={"microBatchSize": 2})

    with pytest.raises(InvalidRecipeError):
        plan(asked(16))
    large = plan(asked(16), with_memory(plan(resolve("llama3-8b", 16)), TERABYTE), keeps_layout=False)
    shrunk = plan(asked(8), large)
    assert total(shrunk) > total(large) > 1.15 * capacity(large)
    assert plan(asked(16), shrunk, keeps_layout=False) == large


def test_a_recomputation_of_the_recipe_is_not_completed_with_that_of_the_run(resolve: Any) -> None:
    full = {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1}
    before = plan(resolve("llama3-8b", 8, parallelism=OTHER | {"pipelineModelParallelSize": 1} | full))
    after = plan(resolve("llama3-8b", 8, parallelism={"recomputeGranularity": "selective"}), before)
    assert layout(after) == layout(before)
    assert (after.recompute_granularity, after.recompute_method) == ("selective", None)


def test_an_edit_that_cannot_run_is_refused_for_what_the_recipe_sets(resolve: Any) -> None:
    full = {"recomputeGranularity": "full", "recomputeMethod": "uniform", "recomputeNumLayers": 1}
    training = {"microBatchSize": 4}
    before = plan(resolve("llama3-8b", 8, parallelism=full, training=training))
    edited = resolve("llama3-8b", 8, parallelism={"recomputeGranularity": "selective"}, training=training)
    with pytest.raises(InvalidRecipeError) as refused:
        plan(edited, before)
    assert [error.field for error in refused.value.errors] == ["spec.training.microBatchSize"]

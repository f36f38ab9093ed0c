"""A global batch size that no layout divides is answered with the nearest ones that one does."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError, UnsuitableBatch
from megatron_operator.planner import plan


def refused(recipe: Any) -> list[UnsuitableBatch]:
    with pytest.raises(InvalidRecipeError) as error:
        plan(recipe)
    return [each for each in error.value.errors if isinstance(each, UnsuitableBatch)]


def test_the_nearest_batches_are_valid_and_none_is_between(resolve: Any) -> None:
    [error] = refused(resolve("llama3-70b", 1000))
    lower, upper = error.suitable
    assert (lower, upper) == (1000, 1025)
    for batch in (lower, upper):
        made = plan(resolve("llama3-70b", 1000, training={"globalBatchSize": batch}))
        assert made.global_batch_size == batch
    for between in (lower + 1, upper - 1):
        assert refused(resolve("llama3-70b", 1000, training={"globalBatchSize": between}))


def test_no_batch_of_a_layout_that_does_not_fit_is_named(resolve: Any) -> None:
    # DP 50 has room for TP 4 and PP 5, DP 1000 for nothing.
    [error] = refused(resolve("llama3-70b", 1000, parallelism={"tensorModelParallelSize": 4}))
    for batch in error.suitable:
        asked = {"tensorModelParallelSize": 4}
        plan(resolve("llama3-70b", 1000, parallelism=asked, training={"globalBatchSize": batch}))


def test_a_layout_whose_sizes_are_set_is_named_with_its_own_batches(resolve: Any) -> None:
    sizes = {"tensorModelParallelSize": 8, "pipelineModelParallelSize": 5, "contextParallelSize": 1}
    with pytest.raises(InvalidRecipeError) as error:
        plan(resolve("llama3-70b", 1000, parallelism=sizes))
    [only] = error.value.errors
    assert str(only).endswith("1024 is not divisible by microBatchSize 1 x DP 25 = 25; set 1000 or 1025")

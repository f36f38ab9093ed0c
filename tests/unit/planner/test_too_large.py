"""Where no layout fits: what is planned nevertheless, and which setting is refused."""

from typing import Any

import pytest
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan

ONE = {"tensorModelParallelSize": 1, "pipelineModelParallelSize": 1, "contextParallelSize": 1}
ONE_NODE = ONE | {"tensorModelParallelSize": 8}
LONG: dict[str, Any] = {
    "model": {"maxPositionEmbeddings": 163_840},
    "training": {"seqLength": 163_840, "globalBatchSize": 8},
}
"""GPT-3 1.3B with these sequences needs 10 % more than an H100 has, by its activations."""


def refusal(resolved: Any) -> str:
    with pytest.raises(InvalidRecipeError) as refused:
        plan(resolved)
    [error] = refused.value.errors
    return str(error)


def test_the_only_layout_is_believed_only_where_the_recipe_sets_it(resolve: Any) -> None:
    p = plan(resolve("gpt3-1.3b", 1, parallelism=ONE, **LONG))
    assert any(note.startswith("memory may not suffice: 87.5 GiB estimated") for note in p.notes)
    line = refusal(resolve("gpt3-1.3b", 1, **LONG))
    assert line.startswith("spec.accelerator.count: on 1 accelerator even the most memory-efficient layout")


def test_a_size_that_cannot_be_raised_is_not_blamed(resolve: Any) -> None:
    line = refusal(resolve("llama3-70b", 8, parallelism={"tensorModelParallelSize": 8}))
    assert line.startswith("spec.accelerator.count: on 8 accelerators even the most memory-efficient layout")
    assert "; use 16 or more, or accelerators with more memory" in line
    assert plan(resolve("llama3-70b", 16, parallelism={"tensorModelParallelSize": 8}))


def test_a_count_on_which_the_sizes_of_the_recipe_do_not_fit_is_named_without_them(resolve: Any) -> None:
    line = refusal(resolve("llama3-70b", 8, parallelism=ONE_NODE))
    assert line.startswith("spec.accelerator.count: on 8 accelerators even the most memory-efficient layout")
    assert "; use 16 or more and leave parallelism to the planner, or accelerators with more" in line
    assert "spec.parallelism.pipelineModelParallelSize" in refusal(
        resolve("llama3-70b", 16, parallelism=ONE_NODE)
    )
    assert plan(resolve("llama3-70b", 16))


@pytest.mark.parametrize("sizes", [ONE, ONE_NODE])
def test_a_layout_of_the_recipe_is_blamed_where_another_one_fits(resolve: Any, sizes: dict[str, Any]) -> None:
    line = refusal(resolve("llama3-70b", 16, parallelism=sizes))
    assert line.startswith("spec.parallelism.pipelineModelParallelSize: TP ")
    assert "; raise it, or leave parallelism to the planner" in line


def test_with_megatron_fsdp_the_accelerators_are_blamed_where_no_other_tp_fits(resolve: Any) -> None:
    sizes = {"useMegatronFsdp": True, "tensorModelParallelSize": 8}
    line = refusal(resolve("llama3-70b", 8, parallelism=sizes))
    assert line.startswith("spec.accelerator.count: on 8 accelerators")
    assert line.endswith(", or leave useMegatronFsdp out")

"""The planner's work does not grow with the numbers of a recipe beyond what a real one needs."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.planner import plan
from megatron_operator.planner.divisors import divisors
from megatron_operator.planner.plan import _problem
from megatron_operator.planner.search.enumerate import MAX_SIZES, valid_layouts
from megatron_operator.planner.search.pipeline_split import MOST_LETTERS, parse_layout


def test_divisors_are_all_divisors_in_order() -> None:
    for number in range(1, 400):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
    assert divisors(36, 9) == [1, 2, 3, 4, 6, 9]


def test_divisors_of_a_large_prime_take_its_square_root() -> None:
    # A loop over the number itself would not end.
    assert divisors(10**12 + 39) == [1, 10**12 + 39]


@pytest.mark.parametrize("text", ["E(t*9999|×6)*9999L", "E(t*9999|)*9999L", "t*9999" * 600])
def test_a_layout_string_is_measured_before_it_is_expanded(text: str) -> None:
    with pytest.raises(ValueError, match=f"it stands for more than {MOST_LETTERS} letters"):
        parse_layout(text)


def test_a_layout_string_of_the_largest_model_is_expanded() -> None:
    assert len(parse_layout("E|" + "(t|)*9999" + "tL")) == 10_001


def test_numbers_with_many_divisors_do_not_multiply_the_layouts(resolve: Callable[..., Any]) -> None:
    resolved = resolve(
        "mixtral-8x7b",
        5040,
        model={"numLayers": 2520, "numExperts": 2520},
        training={"globalBatchSize": 5040 * 64},
    )
    problem = _problem(resolved, resolved.parallelism.model_copy(update=NOTHING), 1, True, Diagnostics())
    layouts = valid_layouts(problem)
    assert len({layout.dims.pp for layout in layouts}) <= MAX_SIZES
    assert len({layout.dims.ep for layout in layouts}) <= MAX_SIZES


NOTHING = {
    "tensor_model_parallel_size": None,
    "pipeline_model_parallel_size": None,
    "context_parallel_size": None,
    "expert_model_parallel_size": None,
}


@pytest.mark.parametrize("layers", [126, 61, 96])
@pytest.mark.parametrize("count", [1440, 23_040])
def test_powers_of_two_and_divisors_of_the_layers_stay_among_many_sizes(
    resolve: Callable[..., Any], layers: int, count: int
) -> None:
    resolved = resolve("llama3-8b", count, model={"numLayers": layers}, training={"globalBatchSize": count})
    problem = _problem(resolved, resolved.parallelism.model_copy(update=NOTHING), 1, True, Diagnostics())
    sizes = {layout.dims.pp for layout in valid_layouts(problem)}
    assert {pp for pp in (2, 4, 8, 16) if count % pp == 0 and layers % pp == 0} <= sizes
    assert {pp for pp in divisors(count, layers) if layers % pp == 0} <= sizes


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"trainTokens": "9" * 9 + "T"},
            "spec.training.trainTokens: 999999999T is above 10^18 tokens",
        ),
        (
            {"microBatchSize": 10**8, "globalBatchSize": 10**8, "seqLength": 10**8},
            "spec: the plan's memoryPerGpu.activations",
        ),
    ],
)
def test_sizes_that_a_status_cannot_hold_are_refused(
    resolve: Callable[..., Any], training: dict[str, Any], message: str
) -> None:
    longest = {"maxPositionEmbeddings": 10**8}
    with pytest.raises(InvalidRecipeError) as caught:
        plan(resolve("llama3-8b", 1, "unheard-of", 1, model=longest, training=training))
    assert message in str(caught.value)

"""What context-parallel ranks exchange splits the heads of a rank, and suits its softmax."""

from typing import Any

import pytest
from megatron_operator.planner import plan

from tests.unit.planner.planning_errors import errors

AT = "spec.parallelism.cpCommType"


@pytest.mark.parametrize(
    ("tp", "sizes", "error"),
    [
        (
            4,
            [4, 2],
            "16 heads and 2 groups of a TP rank over the 4 ranks of the first level; set p2p, or a"
            " first level of 2",
        ),
        (
            8,
            [2, 4],
            "8 heads and 1 groups of a TP rank over the 2 ranks of the first level; set p2p, or a"
            " smaller tensorModelParallelSize",
        ),
        (4, [2, 4], None),
        (2, [4, 2], None),
        (8, [1, 8], None),
    ],
)
def test_the_ranks_of_the_first_level_split_heads_and_groups(
    resolve: Any, tp: int, sizes: list[int], error: str | None
) -> None:
    layout = {"tensorModelParallelSize": tp, "contextParallelSize": 8, "cpCommType": "a2a+p2p"}
    args = {"hierarchical-context-parallel-sizes": sizes}
    found = errors(resolve("llama3-70b", 256, parallelism=layout, megatronArgs=args))
    assert found == ([f"{AT}: a2a+p2p splits the {error}"] if error else [])


@pytest.mark.parametrize("sizes", [{}, {"hierarchical-context-parallel-sizes": [2, 2, 2]}])
def test_an_exchange_on_two_levels_has_two_sizes(resolve: Any, sizes: dict[str, Any]) -> None:
    layout = {"contextParallelSize": 8, "cpCommType": "a2a+p2p"}
    (found,) = errors(resolve("llama3-70b", 256, parallelism=layout, megatronArgs=sizes))
    assert found.startswith(f"{AT}: a2a+p2p splits context-parallel ranks into two levels and needs the size")


@pytest.mark.parametrize("softmax", ["off-by-one", "learnable"])
def test_a_softmax_with_another_term_is_split_by_heads_alone(resolve: Any, softmax: str) -> None:
    def run(kind: str | None) -> Any:
        layout = {"contextParallelSize": 2} | ({"cpCommType": kind} if kind else {})
        return resolve("llama3-8b", 64, parallelism=layout, model={"softmaxType": softmax})

    for kind in (None, "p2p", "allgather"):
        assert errors(run(kind)) == [
            f"{AT}: is {kind or 'p2p'}, but Transformer Engine supports attention sinks with a2a only;"
            " set a2a, or contextParallelSize 1"
        ]
    assert errors(run("a2a")) == []


def test_windows_are_exchanged_by_heads_or_gathered(resolve: Any) -> None:
    def run(kind: str | None, **more: Any) -> Any:
        layout = {"contextParallelSize": 2} | ({"cpCommType": kind} if kind else {})
        return resolve("llama3-8b", 64, parallelism=layout, model={"windowSize": "1024,0"} | more)

    for kind in (None, "p2p"):
        assert errors(run(kind)) == [
            f"{AT}: is {kind or 'p2p'}, but Transformer Engine supports windowed attention with a2a and"
            " allgather only; set a2a or allgather, or contextParallelSize 1"
        ]
    for kind in ("a2a", "allgather"):
        assert errors(run(kind)) == []
    (found,) = errors(run("allgather", softmaxType="learnable"))
    assert found.startswith(
        f"{AT}: is allgather, but Transformer Engine supports attention sinks with a2a only"
    )


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ({}, "set p2p, or a CP of 2 or 4 or 8"),
        ({"windowSize": "1024,0"}, "set allgather, or a CP of 2 or 4 or 8"),
        ({"softmaxType": "learnable"}, "set a CP of 2 or 4 or 8"),
    ],
)
def test_heads_that_are_not_split_have_another_exchange_where_there_is_one(
    resolve: Any, model: dict[str, Any], fix: str
) -> None:
    layout = {"contextParallelSize": 16, "cpCommType": "a2a", "tensorModelParallelSize": 1}
    (found,) = errors(resolve("llama3-8b", 64, parallelism=layout, model=model))
    assert found.endswith(f"; {fix}")


def test_only_a_learned_term_has_parameters(resolve: Any) -> None:
    def parameters(softmax: str) -> int:
        whole = {"contextParallelSize": 1}
        return (
            plan(resolve("llama3-8b", 64, parallelism=whole, model={"softmaxType": softmax})).parameters or 0
        )

    plain = parameters("vanilla")
    assert parameters("off-by-one") == plain
    assert parameters("learnable") == plain + 32 * 32

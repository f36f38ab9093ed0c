"""Evaluations that take long beside the training between them are named: the estimate leaves them out."""

from typing import Any

import pytest
from megatron_operator.planner import plan


def notes(resolved: Any) -> list[str]:
    return [note for note in plan(resolved).notes if note.startswith("evaluations take")]


def test_evaluations_of_more_batches_than_the_training_between_them_are_named(resolve: Any) -> None:
    """1,000 forward passes take as long as 333 steps."""
    [note] = notes(resolve("llama3-70b", 64, training={"evalInterval": 10, "evalIters": 1000}))
    assert note == (
        "evaluations take about 3333% of the time of training, which is not part of the estimate:"
        " training.evalIters 1,000 batches every evalInterval 10"
    )


@pytest.mark.parametrize("training", [{}, {"evalIters": 0}, {"evalInterval": 100, "evalIters": 30}])
def test_evaluations_of_a_tenth_of_the_time_are_not_named(training: dict[str, int], resolve: Any) -> None:
    assert notes(resolve("llama3-70b", 64, training=training)) == []

"""More frequent checkpoints are proposed where a failure would make a run repeat more than an hour."""

from typing import Any

import pytest
from megatron_operator.planner import plan
from megatron_operator.planner.save_interval import save_interval


def notes(resolved: Any) -> list[str]:
    return [note for note in plan(resolved).notes if note.startswith("checkpoint.saveInterval")]


@pytest.mark.parametrize(
    ("step_seconds", "train_iters", "interval"),
    [(67.6, None, 20), (0.1, None, 10_000), (4000.0, None, 1), (0.1, 700, 700), (67.6, 700, 20)],
)
def test_checkpoints_are_within_half_an_hour_of_each_other_or_after_each_step(
    step_seconds: float, train_iters: int | None, interval: int
) -> None:
    assert save_interval(step_seconds, train_iters) == interval


def test_an_interval_of_hours_is_shown_with_what_a_failure_costs(resolve: Any) -> None:
    """500 iterations, the default, of about 68 s each."""
    [note] = notes(resolve("llama3-70b", 64))
    assert note.startswith("checkpoint.saveInterval 500: a failure makes the run repeat up to 9.4 hours of")
    assert note.endswith("; 20 would save every 22.5 minutes")


@pytest.mark.parametrize(
    ("checkpoint", "training"),
    [
        ({"saveInterval": 20}, {}),
        ({"saveInterval": 100_000}, {"trainIters": 40, "lrWarmupIters": 4}),
        # Steps of more than an hour, of which each is saved.
        ({"saveInterval": 1}, {"globalBatchSize": 64 * 1024}),
    ],
)
def test_nothing_is_proposed_within_an_hour_or_where_each_step_is_saved(
    resolve: Any, checkpoint: dict[str, Any], training: dict[str, Any]
) -> None:
    assert not notes(resolve("llama3-70b", 64, checkpoint=checkpoint, training=training))


def test_an_interval_above_the_length_costs_the_whole_run(resolve: Any) -> None:
    [note] = notes(
        resolve(
            "llama3-70b",
            64,
            checkpoint={"saveInterval": 100_000},
            training={"trainIters": 100, "lrWarmupIters": 10},
        )
    )
    assert "up to 1.9 hours of training" in note

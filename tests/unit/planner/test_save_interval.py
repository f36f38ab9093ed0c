"""More frequent checkpoints are proposed where a failure would make a run repeat more than an hour."""

from typing import Any

import pytest
from megatron_operator.planner import plan
from megatron_operator.planner.save_interval import save_interval


def notes(resolved: Any) -> list[str]:
    return [note for note in plan(resolved).notes if note.startswith("checkpoint.saveInterval")]


@pytest.mark.parametrize(
    ("step_seconds", "train_iters", "interval"),
    [
        (67.6, None, 25),
        (0.1, None, 15_000),
        (18.7, None, 90),
        (240.0, None, 7),
        (4000.0, None, 1),
        (0.1, 700, 700),
        (67.6, 700, 25),
    ],
)
def test_checkpoints_are_within_half_an_hour_of_each_other_or_after_each_step(
    step_seconds: float, train_iters: int | None, interval: int
) -> None:
    assert save_interval(step_seconds, train_iters) == interval


def test_an_interval_of_hours_is_shown_with_what_a_failure_costs(resolve: Any) -> None:
    """500 iterations, the default, of about 68 s each."""
    [note] = notes(resolve("llama3-70b", 64))
    assert note.startswith("checkpoint.saveInterval 500: a failure makes the run repeat up to 9.4 hours of")
    assert note.endswith("; 25 would save every 28.2 minutes")


def test_a_proposed_interval_names_the_rate_that_a_large_checkpoint_needs(resolve: Any) -> None:
    [note] = notes(resolve("deepseek-v3", 1024))
    assert note.endswith("; 90 would save every 28.1 minutes, for which the volume has to take 5.3 GiB/s")


@pytest.mark.parametrize("step_seconds", [0.001 * 1.07**power for power in range(200)])
def test_an_interval_is_never_shorter_than_20_minutes(step_seconds: float) -> None:
    interval = save_interval(step_seconds, None)
    assert interval == 1 or 1200 < interval * step_seconds <= 1800


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

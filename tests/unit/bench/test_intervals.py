"""Prediction intervals, and the errors that they come from."""

import dataclasses
import math

import pytest
from megatron_operator.planner.estimate import uncertainty

from bench import intervals
from bench.planner import predicted
from bench.published import Measurement, measurements


@pytest.fixture(scope="module")
def runs() -> list[Measurement]:
    return measurements()


def test_the_planner_uses_the_factors_of_the_published_runs(runs: list[Measurement]) -> None:
    assert intervals.FILE.read_text() == intervals.generated(runs), "run python -m bench.intervals --write"
    assert uncertainty.table() == intervals.factors(runs)


def test_nine_of_ten_published_runs_are_within_their_interval(runs: list[Measurement]) -> None:
    within, count = intervals.coverage(runs)
    assert count == len(runs)
    assert 0.85 <= within / count <= 0.97


def test_nothing_is_more_certain_than_what_was_measured(runs: list[Measurement]) -> None:
    for groups in intervals.factors(runs).values():
        assert groups[uncertainty.UNMEASURED] == max(groups.values())


def test_a_small_group_is_drawn_to_the_average_of_its_kind(runs: list[Measurement]) -> None:
    [one] = [each for each in runs if "qwen3-30b-a3b 16 x h100-sxm fp8" in each.name]
    others = [
        each
        for each in runs
        if each.workload.shape.is_moe and each.accelerator.architecture.startswith("blackwell")
    ]
    alone = math.exp(uncertainty.NINE_OF_TEN * abs(intervals.logarithm(one)))
    exact = dataclasses.replace(one, tokens_per_second_per_gpu=predicted(one))
    factors = [intervals.factors([*others, each])["moe"]["fp8 on hopper"] for each in (one, exact)]
    assert 1.0 < factors[1] < factors[0]
    assert factors[1] < alone

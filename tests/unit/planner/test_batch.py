"""Amounts, batch ramp-ups and numbers of iterations."""

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.training import TrainingSpec
from megatron_operator.catalog.ramp_up import amount, in_samples, iterations_of, ramp_up, samples_of
from megatron_operator.planner import plan
from megatron_operator.planner.batch import full_steps, global_batches, iterations

from tests.unit.planner.conftest import Resolve


@pytest.mark.parametrize(
    ("text", "number"),
    [("15T", 15 * 10**12), ("1.5B", 1_500_000_000), ("300", 300), ("0.1K", 100)],
)
def test_an_amount_is_exact(text: str, number: int) -> None:
    assert amount(text) == number


def test_a_ramp_up_is_parsed_as_in_megatron() -> None:
    assert ramp_up("0:384 200B:768, 400B:1152") == ((0, 384), (200 * 10**9, 768), (400 * 10**9, 1152))


@pytest.mark.parametrize(
    "text", ["", "384", "0:0", "1B:384", "0:384 0:768", "0:384 2B:512 1B:768", "0:3.5", "xB:8"]
)
def test_a_ramp_up_that_megatron_rejects_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"pair|begin|increase"):
        ramp_up(text)


def test_a_ramp_up_has_several_global_batches() -> None:
    training = TrainingSpec.model_validate({"stepBatchSizeSchedule": "0:64 1B:128", "trainSamples": 10**6})
    assert global_batches(training, Diagnostics()) == [64, 128]


@pytest.mark.parametrize(
    ("schedule", "samples"),
    [
        ("0:64 8M:128", 5000),
        ("0:64 8M:128", 900),
        ("0:7 1M:13 2M:3 3M:50", 777),
        ("0:500 1M:20 1.5M:30", 1001),
        ("0:64 900M:128", 640),
        ("0:8", 81),
    ],
)
def test_iterations_under_a_ramp_up_are_those_that_megatron_counts(schedule: str, samples: int) -> None:
    steps = in_samples(ramp_up(schedule), 4096)
    batches: list[int] = []
    while sum(batches) < samples:
        batches.append(next(batch for start, batch in reversed(steps) if start <= sum(batches)))
    assert iterations_of(steps, samples) == len(batches)
    assert [samples_of(steps, n) for n in range(len(batches) + 1)] == [
        sum(batches[:n]) for n in range(len(batches) + 1)
    ]
    training = {"stepBatchSizeSchedule": schedule, "trainSamples": samples, "seqLength": 4096}
    assert iterations(TrainingSpec.model_validate(training)) == len(batches)


def test_a_run_with_a_ramp_up_is_planned_with_its_iterations(resolve: Resolve) -> None:
    """64 for 5 billion tokens, 128 for the other 15, of 8,192 each."""
    training = {"stepBatchSizeSchedule": "0:64 5B:128", "trainTokens": "20B"}
    planned = plan(resolve("llama3-8b", 8, training=training))
    assert planned.train_iters == 9537 + 14305
    assert full_steps(planned) == 2441406 / 128
    constant = plan(resolve("llama3-8b", 8, training={"trainTokens": "20B", "globalBatchSize": 128}))
    assert full_steps(constant) == constant.train_iters


@pytest.mark.parametrize("schedule", ["0:128 500:256 2000:512", "0:64 10000:128 12000:256"])
def test_steps_of_a_ramp_up_that_begin_at_the_same_sample_are_refused(schedule: str) -> None:
    found = Diagnostics()
    training = {"stepBatchSizeSchedule": schedule, "trainSamples": 10**6, "seqLength": 8192}
    assert global_batches(TrainingSpec.model_validate(training), found) == []
    assert "are tokens, of which a sample has 8,192" in found.errors[0].message
    assert found.errors[0].fix == "write tokens, at least 8192 apart, not samples or iterations"


def test_iterations_follow_from_samples() -> None:
    assert iterations(TrainingSpec(train_samples=1000, global_batch_size=64)) == 15
    assert iterations(TrainingSpec(train_iters=7, global_batch_size=64)) == 7


@pytest.mark.parametrize(
    "text", ["0:1 1e999999999:2", "0:1 1/2:2", "0:1 5:²", "0:1 5:" + "1" * 5000, "0:1 -5:2"]
)
def test_a_ramp_up_with_a_number_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a tokens:batch pair"):
        ramp_up(text)

"""Amounts, batch ramp-ups and numbers of iterations."""

import pytest
from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.api.training import TrainingSpec
from megatron_operator.planner.batch import amount, global_batches, iterations, ramp_up


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
    assert iterations(training) is None


def test_iterations_follow_from_samples() -> None:
    assert iterations(TrainingSpec(train_samples=1000, global_batch_size=64)) == 15
    assert iterations(TrainingSpec(train_iters=7, global_batch_size=64)) == 7


@pytest.mark.parametrize(
    "text", ["0:1 1e999999999:2", "0:1 1/2:2", "0:1 5:²", "0:1 5:" + "1" * 5000, "0:1 -5:2"]
)
def test_a_ramp_up_with_a_number_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a tokens:batch pair"):
        ramp_up(text)

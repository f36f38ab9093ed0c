"""The demo's numbers are computed from the iterations that the trainer recorded."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from demo.report import Summary, summarize, write
from testkit.training_run import IterationRecord

KILLED_AT = 105.5
RECORDS = [
    *(IterationRecord(i, 5.0 - i / 10, 100.0 + i, generation=1) for i in range(1, 6)),
    IterationRecord(6, 4.4, 106.0, generation=1),  # under way at the kill
    *(IterationRecord(i, 5.0 - i / 10, 112.0 + i, generation=2) for i in range(5, 11)),
]
UNDISTURBED = [IterationRecord(i, 5.0 - i / 10, 200.0 + i, generation=1) for i in range(1, 11)]


def summary_of(records: list[IterationRecord], undisturbed: list[IterationRecord] = UNDISTURBED) -> Summary:
    return summarize(
        "Succeeded", records, undisturbed, KILLED_AT, restarts=1, tokens_per_iteration=10, timings={}
    )


def test_repeated_iterations_and_times_are_counted_from_the_kill() -> None:
    summary = summary_of(RECORDS)
    assert summary.iterations == 10
    assert summary.killed_at_iteration == 5  # 6 was under way
    assert summary.resumed_at_iteration == 5
    assert summary.iterations_lost == 2  # 5 and 6
    assert summary.seconds_to_first_step == pytest.approx(11.5)
    assert summary.seconds_to_new_iteration == pytest.approx(13.5)
    assert summary.tokens == 100


def test_an_undisturbed_run_lost_nothing() -> None:
    records = [IterationRecord(i, 1.0, 100.0 + i, generation=1) for i in range(1, 4)]
    summary = summary_of(records)
    assert (summary.iterations_lost, summary.seconds_to_new_iteration) == (0, None)
    assert summary.resumed_at_iteration is None


def test_a_run_without_iterations_is_an_error() -> None:
    with pytest.raises(ValueError, match="no iteration"):
        summary_of([])


def test_equal_losses_are_no_difference() -> None:
    assert summary_of(RECORDS).different_losses == []


@pytest.mark.parametrize("at", [4, 6, 8])
def test_a_loss_that_differs_in_its_last_digits_is_named(at: int) -> None:
    """Two of the records are of iteration 5: before the kill, and repeated."""
    changed = replace(RECORDS[at], loss=RECORDS[at].loss * (1 + 1e-15))
    assert changed.loss != RECORDS[at].loss
    summary = summary_of([*RECORDS[:at], changed, *RECORDS[at + 1 :]])
    assert summary.different_losses == [changed.iteration]


def test_an_iteration_that_one_run_lacks_is_a_difference() -> None:
    assert summary_of(RECORDS, UNDISTURBED[:-1]).different_losses == [10]
    assert summary_of(RECORDS[:-1]).different_losses == [10]


def test_summary_and_plot_are_written_with_one_number_of_the_kill(tmp_path: Path) -> None:
    numbers, picture = write(summary_of(RECORDS), RECORDS, UNDISTURBED, KILLED_AT, tmp_path)
    written = numbers.read_text()
    assert '"iterations_lost": 2' in written
    assert '"killed_at_iteration": 5' in written
    with Image.open(picture) as image:
        assert image.info["Description"] == "pod killed at iteration 5"

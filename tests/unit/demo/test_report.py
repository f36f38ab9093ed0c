"""The demo's numbers are computed from the iterations that the trainer recorded."""

from pathlib import Path

import pytest

from demo.report import summarize, write
from testkit.training_run import IterationRecord

KILLED_AT = 105.5
RECORDS = [
    *(IterationRecord(i, 5.0 - i / 10, 100.0 + i, generation=1) for i in range(1, 6)),
    IterationRecord(6, 4.4, 106.0, generation=1),  # under way at the kill
    *(IterationRecord(i, 5.0 - i / 10, 112.0 + i, generation=2) for i in range(5, 11)),
]


def test_repeated_iterations_and_times_are_counted_from_the_kill() -> None:
    summary = summarize("Succeeded", RECORDS, KILLED_AT, restarts=1, tokens_per_iteration=10, timings={})
    assert summary.iterations == 10
    assert summary.iterations_lost == 2  # 5 and 6
    assert summary.seconds_to_first_step == pytest.approx(11.5)
    assert summary.seconds_to_new_iteration == pytest.approx(13.5)
    assert summary.tokens == 100


def test_an_undisturbed_run_lost_nothing() -> None:
    records = [IterationRecord(i, 1.0, 100.0 + i, generation=1) for i in range(1, 4)]
    summary = summarize(
        "Succeeded", records, killed_at=1000.0, restarts=0, tokens_per_iteration=1, timings={}
    )
    assert (summary.iterations_lost, summary.seconds_to_new_iteration) == (0, None)


def test_a_run_without_iterations_is_an_error() -> None:
    with pytest.raises(ValueError, match="no iteration"):
        summarize("Failed", [], KILLED_AT, restarts=0, tokens_per_iteration=1, timings={})


def test_summary_and_plot_are_written(tmp_path: Path) -> None:
    summary = summarize(
        "Succeeded", RECORDS, KILLED_AT, restarts=1, tokens_per_iteration=10, timings={"train": 1.25}
    )
    numbers, picture = write(summary, RECORDS, KILLED_AT, tmp_path)
    assert '"iterations_lost": 2' in numbers.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")

"""The planner's memory against measured peaks."""

from bench import memory
from bench.memory import runs

RUNS = runs()


def test_no_run_that_fitted_is_refused() -> None:
    assert [run.name for run in RUNS if not run.fits] == []


def test_no_measured_peak_is_underestimated_beyond_the_margin_of_the_search() -> None:
    """Layouts that use at most 95 % of the memory are preferred."""
    estimated = [run for run in RUNS if run.error is not None and not run.not_estimated]
    assert {run.name: run.error for run in estimated if run.error < -0.055} == {}


def test_measured_peaks_are_predicted_within_a_sixth() -> None:
    assert {run.name: run.error for run in RUNS if run.error is not None and abs(run.error) > 1 / 6} == {}


def test_the_page_has_the_current_table() -> None:
    text = memory.PAGE.read_text()
    assert memory.page(text, RUNS) == text, "run `python -m bench.memory --write` and review the diff"

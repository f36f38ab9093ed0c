"""When a series of trials is complete, and how the table shows it."""

import math
from pathlib import Path

import pytest

from bench import recovery_report
from bench.recovery_report import (
    PHASES,
    Cell,
    Measured,
    decided,
    document,
    enough,
    median_total,
    medians,
    notes,
    summarize,
)

STUCK = Cell(stuck="no new iteration in 150 s")


def took(seconds: float) -> Cell:
    return Cell({name: seconds / len(PHASES) for name in PHASES})


def measured(system: str, fault: str, *cells: Cell, planned: int = 5) -> Measured:
    return Measured(planned, {system: {fault: list(cells)}})


def test_three_stuck_trials_decide_a_median_of_five() -> None:
    assert not decided([STUCK, STUCK], 5)
    assert decided([STUCK, STUCK, STUCK], 5)
    assert decided([STUCK, took(10), STUCK, STUCK], 5)


def test_a_decided_median_is_the_median_of_the_whole_series() -> None:
    for planned in range(1, 8):
        stuck = next(n for n in range(planned + 1) if decided([STUCK] * n, planned))
        best = [STUCK] * stuck + [took(1.0)] * (planned - stuck)
        assert math.isinf(median_total(best))
        if stuck > 1 or planned > 1:
            assert math.isfinite(median_total([STUCK] * (stuck - 1) + [took(1.0)] * (planned - stuck + 1)))


def test_a_series_is_complete_when_it_is_full_or_decided() -> None:
    assert not enough(measured("exitcode", "rank", took(40)), "exitcode", "rank")
    assert not enough(measured("exitcode", "rank", *[took(40)] * 4), "exitcode", "rank")
    assert enough(measured("exitcode", "rank", *[took(40)] * 5), "exitcode", "rank")
    assert enough(measured("exitcode", "rank", STUCK, STUCK, STUCK), "exitcode", "rank")
    assert not enough(Measured(), "exitcode", "rank")


def test_one_trial_suffices_only_where_more_would_have_the_same_result() -> None:
    once = measured("torchrun", "pod", STUCK)
    assert enough(once, "torchrun", "pod")
    assert not enough(once, "torchrun", "pod", every=True)
    assert not enough(measured("operator", "pod", took(20)), "operator", "pod")
    assert not any(system in ("operator", "cold") for system, _ in recovery_report.DECIDED_BY_ONE_TRIAL)


def test_a_stuck_series_is_shown_as_beyond_the_cap_with_its_count() -> None:
    assert summarize([STUCK] * 3, 5) == "> 150 (3 of 3 stuck; the median of 5 is decided)"
    assert summarize([STUCK, took(10), STUCK, STUCK], 5) == "> 150 (3 of 4 stuck; the median of 5 is decided)"
    assert summarize([STUCK] * 3 + [took(10)] * 2, 5) == "> 150 (3 of 5 stuck)"
    assert summarize([STUCK], 5) == "> 150 (1 of 1 stuck)"
    assert summarize([], 5) == "-"


def test_stuck_trials_count_in_the_median_and_not_in_the_range() -> None:
    cells = [took(10), took(20), took(30), STUCK, STUCK]
    assert summarize(cells, 5) == "30.0 (10.0 to 30.0), N 5, 2 stuck"
    assert medians(cells)["total"] == pytest.approx(30.0)
    assert medians([took(10), STUCK, STUCK]) == {}


def test_the_notes_give_the_reasons_for_stuck_and_for_few_trials() -> None:
    assert notes(measured("torchrun", "pod", STUCK)) == [
        "Stuck: torchrun alone, a pod is deleted: no new iteration in 150 s.",
        "One trial: torchrun alone, a pod is deleted: no controller replaces a pod.",
    ]
    assert notes(measured("torchrun", "pod", *[STUCK] * 3)) == [
        "Stuck: torchrun alone, a pod is deleted: no new iteration in 150 s."
    ]
    assert notes(measured("operator", "rank", *[took(8)] * 5)) == []


def test_every_trial_is_kept_with_how_many_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = measured("exitcode", "rank", took(40), STUCK, planned=7)
    file = tmp_path / "phases.yaml"
    file.write_text(recovery_report.yaml.safe_dump(document(written)))
    monkeypatch.setattr(recovery_report, "DATA", file)
    assert Measured.read() == written

"""When a series of trials is over, and what the table says of it."""

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
    medians,
    middle,
    notes,
    told,
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


def test_the_median_that_was_decided_is_that_of_the_whole_series() -> None:
    for planned in range(1, 8):
        stuck = next(n for n in range(planned + 1) if decided([STUCK] * n, planned))
        best = [STUCK] * stuck + [took(1.0)] * (planned - stuck)
        assert math.isinf(middle(best))
        if stuck > 1 or planned > 1:
            assert math.isfinite(middle([STUCK] * (stuck - 1) + [took(1.0)] * (planned - stuck + 1)))


def test_a_series_goes_on_until_it_is_full_or_decided() -> None:
    assert not enough(measured("exitcode", "rank", took(40)), "exitcode", "rank")
    assert not enough(measured("exitcode", "rank", *[took(40)] * 4), "exitcode", "rank")
    assert enough(measured("exitcode", "rank", *[took(40)] * 5), "exitcode", "rank")
    assert enough(measured("exitcode", "rank", STUCK, STUCK, STUCK), "exitcode", "rank")
    assert not enough(Measured(), "exitcode", "rank")


def test_one_trial_is_enough_only_where_more_would_say_the_same() -> None:
    once = measured("torchrun", "pod", STUCK)
    assert enough(once, "torchrun", "pod")
    assert not enough(once, "torchrun", "pod", every=True)
    assert not enough(measured("operator", "pod", took(20)), "operator", "pod")
    assert not any(system in ("operator", "anew") for system, _ in recovery_report.ONE_TELLS)


def test_a_stuck_series_is_told_as_beyond_the_cap_with_its_count() -> None:
    assert told([STUCK] * 3, 5) == "> 150 (3 of 3 stuck; the median of 5 is decided)"
    assert told([STUCK, took(10), STUCK, STUCK], 5) == "> 150 (3 of 4 stuck; the median of 5 is decided)"
    assert told([STUCK] * 3 + [took(10)] * 2, 5) == "> 150 (3 of 5 stuck)"
    assert told([STUCK], 5) == "> 150 (1 of 1 stuck)"
    assert told([], 5) == "-"


def test_a_stuck_trial_weighs_on_the_median_of_those_that_came_through() -> None:
    cells = [took(10), took(20), took(30), STUCK, STUCK]
    assert told(cells, 5) == "30.0 (10.0 to 30.0), N 5, 2 stuck"
    assert medians(cells)["total"] == pytest.approx(30.0)
    assert medians([took(10), STUCK, STUCK]) == {}


def test_the_notes_say_why_trials_were_stuck_and_why_there_are_few() -> None:
    assert notes(measured("torchrun", "pod", STUCK)) == [
        "Stuck: torchrun alone, a pod is deleted: no new iteration in 150 s.",
        "One trial: torchrun alone, a pod is deleted: nobody replaces a pod.",
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

"""Deadlines grow with the load, and nothing waits longer than for its state."""

import pytest

from testkit import waiting
from testkit.waiting import MAX_LOAD_FACTOR, load_factor, wait_until


@pytest.mark.parametrize(
    ("load", "cores", "factor"), [(0.5, 2, 1.0), (6.0, 2, 3.0), (400.0, 2, MAX_LOAD_FACTOR)]
)
def test_the_load_factor_is_the_load_per_core_within_limits(
    load: float, cores: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(waiting.os, "cpu_count", lambda: cores)
    assert load_factor() == factor


def test_the_first_result_that_is_neither_none_nor_false_nor_empty_ends_the_wait() -> None:
    results = iter([None, False, [], {}, "", 0])
    assert wait_until("a number", lambda: next(results)) == 0


def test_a_timeout_names_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "load_factor", lambda: 1.0)
    with pytest.raises(TimeoutError, match="waiting for the moon"):
        wait_until(lambda: "the moon", lambda: None, seconds=0.01)

"""Delays between gang restarts."""

import pytest
from megatron_operator.lifecycle.backoff import JITTER, LONGEST, backoff


@pytest.mark.parametrize(("restarts", "middle"), [(1, 10), (2, 20), (3, 40), (6, 300), (1000, 300)])
def test_delays_double_up_to_five_minutes(restarts: int, middle: float) -> None:
    delays = [backoff(f"run-{index}", restarts) for index in range(100)]
    assert all(middle * (1 - JITTER) <= delay <= middle * (1 + JITTER) for delay in delays)
    assert len(set(delays)) > 50, "runs that failed together do not restart together"
    assert max(delays) <= LONGEST * (1 + JITTER)


def test_the_first_restart_has_no_delay() -> None:
    assert backoff("run", 0) == 0


def test_a_restarted_operator_waits_for_the_same_time() -> None:
    assert backoff("run", 3) == backoff("run", 3)

"""Pauses between gang restarts."""

import pytest
from megatron_operator.lifecycle.backoff import JITTER, LONGEST, backoff


@pytest.mark.parametrize(("restarts", "middle"), [(1, 10), (2, 20), (3, 40), (6, 300), (1000, 300)])
def test_pauses_double_up_to_five_minutes(restarts: int, middle: float) -> None:
    pauses = [backoff(f"run-{index}", restarts) for index in range(100)]
    assert all(middle * (1 - JITTER) <= pause <= middle * (1 + JITTER) for pause in pauses)
    assert len(set(pauses)) > 50, "runs that failed together do not start together"
    assert max(pauses) <= LONGEST * (1 + JITTER)


def test_the_first_restart_needs_no_pause() -> None:
    assert backoff("run", 0) == 0


def test_a_restarted_operator_waits_as_long() -> None:
    assert backoff("run", 3) == backoff("run", 3)

"""The API server's time is used where the operator's own clock is far off."""

from email.utils import formatdate

import pytest
from megatron_operator.controller.clock import ServerClock

NOW = 1_800_000_000.0


class Local:
    """The clock of the operator's machine."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> float:
        return self.time


def date(at: float) -> str:
    return formatdate(at, usegmt=True)


def test_a_small_difference_is_ignored() -> None:
    local = Local()
    clock = ServerClock(local)
    clock.synchronize(date(NOW - 2))
    assert clock.now() == NOW


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 6.0])
def test_a_clock_that_is_far_off_is_corrected_and_keeps_running(ahead: float) -> None:
    local = Local()
    clock = ServerClock(local)
    local.time += ahead
    clock.synchronize(date(NOW))
    assert clock.now() == NOW
    local.time += 10
    assert clock.now() == NOW + 10
    clock.synchronize(date(NOW + 8))
    assert clock.now() == NOW + 10, "the duration of responses does not change it"


def test_a_clock_that_was_corrected_is_used_again() -> None:
    local = Local()
    clock = ServerClock(local)
    local.time += 3600
    clock.synchronize(date(NOW))
    local.time -= 3600
    clock.synchronize(date(NOW))
    assert clock.now() == local.time


@pytest.mark.parametrize("header", [None, "", "yesterday"])
def test_a_response_without_a_date_changes_nothing(header: str | None) -> None:
    clock = ServerClock(Local())
    clock.synchronize(header)
    assert clock.now() == NOW

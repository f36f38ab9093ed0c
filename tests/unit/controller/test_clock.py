"""The API server's time counts where the operator's own clock is far off."""

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


def test_a_small_difference_is_the_time_that_the_answer_took() -> None:
    local = Local()
    clock = ServerClock(local)
    clock.heard(date(NOW - 2))
    assert clock.now() == NOW


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 6.0])
def test_a_clock_that_is_far_off_is_put_right_and_goes_on(ahead: float) -> None:
    local = Local()
    clock = ServerClock(local)
    local.time += ahead
    clock.heard(date(NOW))
    assert clock.now() == NOW
    local.time += 10
    assert clock.now() == NOW + 10
    clock.heard(date(NOW + 8))
    assert clock.now() == NOW + 10, "it does not waver by what answers take"


def test_a_clock_that_was_set_right_is_believed_again() -> None:
    local = Local()
    clock = ServerClock(local)
    local.time += 3600
    clock.heard(date(NOW))
    local.time -= 3600
    clock.heard(date(NOW))
    assert clock.now() == local.time


@pytest.mark.parametrize("said", [None, "", "yesterday"])
def test_an_answer_without_a_date_changes_nothing(said: str | None) -> None:
    clock = ServerClock(Local())
    clock.heard(said)
    assert clock.now() == NOW

"""How often a run whose pods do not all run is checked without an event."""

from typing import Any

import pytest
from megatron_operator.lifecycle.recovery import recheck_delay

from tests.unit.lifecycle.reconciling import reconcile


def delays(run: Any, *waited: float) -> list[float | None]:
    """The delays so many seconds after the run's last change of state."""
    reconcile(run)
    since, found = run.now, []
    for seconds in waited:
        run.now = since + seconds
        found.append(recheck_delay(run.status(), run.snapshot()))
    return found


def test_a_complete_gang_is_checked_less_often_the_longer_it_waits(run: Any) -> None:
    run.pods = [run.pod("master", "Pending"), run.pod("worker", "Pending")]

    assert delays(run, 1, 60, 300, 600, 86_400) == [15, 15, 30, 60, 60]


def test_a_gang_that_lacks_a_pod_is_checked_often_however_long_it_waits(run: Any) -> None:
    run.pods = [run.pod("master", "Pending")]

    assert delays(run, 1, 60, 86_400) == [3, 15, 15]


@pytest.mark.parametrize("waited", [1, 86_400])
def test_a_run_that_trains_is_not_checked(run: Any, waited: float) -> None:
    run.report(iteration=50)

    assert delays(run, waited) == [None]

"""What pods report at the moment, warnings and slow ranks, ends with them."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.finished_job import clean_up
from megatron_operator.lifecycle.job_status import set_job_replaced
from megatron_operator.lifecycle.recovery import apply_decision
from megatron_operator.lifecycle.recovery_policy import Fail
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.lifecycle.suspension import end_suspended_pods

from tests.unit.lifecycle.reconciling import reconcile

LOW = {"reason": "CheckpointVolumeLow", "message": "12.5 GiB are left"}
SLOW = {"rank": 9, "nodeRank": 1, "iteration": 40, "slowdown": 1.84, "ownSeconds": 0.92, "peerSeconds": 0.5}


@pytest.fixture
def warned(run: Any) -> Any:
    """A run with a warning and a slow rank, which its pods keep reporting."""
    run.report(iteration=50, warnings=[LOW], stragglers=[SLOW])
    assert lasting(reconcile(run)) == (1, 1)
    return run


def lasting(status: StatusBuilder) -> tuple[int, int]:
    """Number of warnings, and of ranks that are slow now."""
    slow = [each for each in status.current.stragglers or () if each.until is None]
    return len(status.current.warnings), len(slow)


def finish(run: Any, phase: str) -> None:
    run.job["status"] = {"conditions": [{"type": phase, "status": "True"}]}


def queue(run: Any) -> None:
    run.job["spec"]["runPolicy"]["suspend"] = True


def lose_all_pods(run: Any) -> None:
    run.pods = [run.pod(kind, "Pending") for kind in ("master", "worker")]


def delete_all_pods(run: Any) -> None:
    for pod in run.pods:
        pod["metadata"]["deletionTimestamp"] = timestamp(run.now + 30)


@pytest.mark.parametrize(
    "change",
    [
        queue,
        lambda run: finish(run, "Succeeded"),
        lambda run: finish(run, "Failed"),
        lose_all_pods,
        delete_all_pods,
    ],
    ids=["queued", "succeeded", "failed", "pods wait for nodes", "pods end"],
)
def test_no_report_lasts_once_no_pod_runs_although_the_last_one_is_known(
    warned: Any, change: Callable[[Any], None]
) -> None:
    change(warned)
    for _ in range(2):
        status = reconcile(warned)
        assert lasting(status) == (0, 0)
        assert {event.reason for event in status.events}.isdisjoint({LOW["reason"], "SlowRank"})


def test_no_report_of_pods_that_were_replaced_counts(warned: Any) -> None:
    lose_all_pods(warned)
    reconcile(warned)
    warned.pass_time(60)
    warned.pods = [warned.pod(kind) for kind in ("master", "worker")]
    assert lasting(reconcile(warned)) == (0, 0)
    warned.report(iteration=51, warnings=[LOW])
    assert lasting(reconcile(warned)) == (1, 0)


@pytest.mark.parametrize(
    "end",
    [
        lambda status, run: end_suspended_pods(status, run.snapshot()),
        lambda status, run: apply_decision(status, run.snapshot(), Fail("4 restarts")),
        lambda status, _run: set_job_replaced(status),
    ],
    ids=["suspended", "restarts spent", "job replaced"],
)
def test_no_report_lasts_once_the_operator_ends_the_pods(
    warned: Any, end: Callable[[StatusBuilder, Any], object]
) -> None:
    status = warned.status()
    end(status, warned)
    assert lasting(status) == (0, 0)


def test_a_run_that_ended_under_an_earlier_release_keeps_none(warned: Any) -> None:
    status = warned.status()
    status.fail("RestartsSpent", "4 restarts")
    clean_up(status, warned.snapshot())
    assert lasting(status) == (0, 0)

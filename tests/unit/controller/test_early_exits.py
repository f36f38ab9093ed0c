"""A run whose Master exits before the last iteration is no success, over a simulated cluster."""

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.observation import PodPhase

from tests.unit.controller.simulated_run import Run

CAUSE = "master-0: ended with exit code 0 before the last iteration"


@pytest.fixture
def active(training_run: Run) -> Run:
    """The Master has exited with code 0 at an early iteration; its job is still active."""
    run = training_run
    run.until(run.trains)
    master = next(pod for pod in run.cluster.pods if pod.rank == 0)
    run.cluster.fail(master, 0, "ended")
    master.phase = PodPhase.SUCCEEDED
    return run


@pytest.fixture
def left(active: Run) -> Run:
    """The job of that Master has succeeded."""
    succeed(active)
    return active


def succeed(run: Run) -> None:
    run.cluster.succeeded = True
    run.cluster.pods.remove(next(pod for pod in run.cluster.pods if pod.rank == 1))  # cleanPodPolicy: Running


def charge(run: Run, restarts: int) -> None:
    """Let the run have restarted so often since its checkpoint that it waits before the next restart."""
    recovery = {
        "restarts": restarts,
        "restartsSinceCheckpoint": restarts,
        "lastRestartTime": timestamp(run.cluster.now),
        "checkpointIteration": run.cluster.iteration,
        "firstCause": "worker-0: lost",
        "lastCause": "worker-0: lost",
    }
    status = dict(run.api.recipe["status"])
    status["recovery"] = status.get("recovery", {}) | recovery
    run.api.recipe = run.api.recipe | {"status": status}


def test_a_run_that_was_left_early_goes_on_although_its_pod_is_removed_before_the_restart(left: Run) -> None:
    charge(left, restarts=4)
    left.operator.reconcile()
    assert left.condition("Running")["reason"] == "LeftEarly"
    left.cluster.pods.clear()
    left.operator.reconcile()
    assert left.status["phase"] != "Succeeded"
    left.until(lambda: bool(left.incidents), seconds=900)
    left.until(left.trains)
    assert left.incidents[-1]["cause"] == CAUSE


def test_a_job_that_succeeds_late_after_an_early_exit_of_its_master_is_no_success(active: Run) -> None:
    active.cluster.training_operator = False
    for _ in range(5):
        active.operator.reconcile()
        active.cluster.pass_time(1)
    active.cluster.training_operator = True
    succeed(active)
    active.operator.reconcile()
    assert active.status["phase"] != "Succeeded"
    active.until(active.trains)
    assert active.incidents[-1]["cause"] == CAUSE


def test_a_master_that_exits_early_while_its_gang_is_restarted_costs_that_restart_alone(
    training_run: Run,
) -> None:
    run = training_run
    run.until(run.trains)
    run.cluster.hanging = True
    run.until(lambda: bool(run.status["recovery"].get("restartBefore")), seconds=7200)
    run.cluster.pods.clear()
    run.cluster.succeeded, run.cluster.hanging = True, False
    job = run.cluster.job
    run.operator.reconcile()
    assert run.status["phase"] != "Succeeded"
    run.until(run.trains)
    assert run.cluster.job is not job
    assert [incident["kind"] for incident in run.incidents] == ["gang"]
    assert run.status["recovery"]["restarts"] == 1


def test_a_master_that_exits_early_as_it_is_drained_is_no_success(active: Run) -> None:
    master = next(pod for pod in active.cluster.pods if pod.rank == 0)
    active.cluster.delete(master, "EvictionByEvictionAPI")
    active.operator.reconcile()
    succeed(active)
    active.cluster.pods.remove(master)
    active.operator.reconcile()
    assert active.status["phase"] != "Succeeded"
    active.until(active.trains)

"""Progress alone is written at most once in 30 s, and no decision depends on what is not written."""

from typing import Any

from megatron_operator.lifecycle.status_update import SHORTEST_EVALUATION
from megatron_operator.lifecycle.write_delay import INTERVAL

from tests.unit.controller.simulated_cluster import SAVE_INTERVAL
from tests.unit.controller.simulated_run import Run


def version(run: Run) -> int:
    """Grows with every write."""
    return int(run.api.recipe["metadata"]["resourceVersion"])


def seconds(run: Run, number: int) -> int:
    """Let time pass, with a reconcile each second; returns how often the status was written."""
    before = version(run)
    for _ in range(number):
        run.cluster.pass_time(1)
        run.operator.reconcile()
    return version(run) - before


def until_unwritten(run: Run, behind: int = 10) -> int:
    """Train until the status is that many iterations behind; returns the iteration of the run."""
    run.until(lambda: run.cluster.iteration - run.status["progress"]["iteration"] >= behind)
    return run.cluster.iteration


def test_a_run_that_trains_costs_a_write_in_30_seconds_and_one_for_each_checkpoint(training_run: Run) -> None:
    saves = 6
    writes = seconds(training_run, saves * SAVE_INTERVAL)
    assert saves <= writes <= saves + saves * SAVE_INTERVAL / INTERVAL
    assert training_run.cluster.training


def test_the_status_is_never_further_behind_than_the_interval(training_run: Run) -> None:
    for _ in range(200):
        seconds(training_run, 1)
        behind = training_run.cluster.iteration - training_run.status["progress"]["iteration"]
        assert behind <= INTERVAL


def test_a_restarted_operator_writes_no_progress_before_it_is_due(training_run: Run) -> None:
    until_unwritten(training_run)
    training_run.operator._start()
    assert seconds(training_run, 5) == 0


def until_written(run: Run) -> None:
    """Train until the status is written."""
    while not seconds(run, 1):
        assert run.cluster.training


def evaluate(run: Run, length: int) -> int:
    """Let the ranks evaluate for so many seconds, and train for one; returns how often was written."""
    run.cluster.evaluating = True
    writes = seconds(run, length)
    run.cluster.evaluating = False
    return writes + seconds(run, 1)


def test_a_short_evaluation_costs_no_write(training_run: Run) -> None:
    for _ in range(3):
        until_written(training_run)
        assert evaluate(training_run, int(SHORTEST_EVALUATION) - 5) == 0
        assert training_run.status["phase"] == "Training"


def test_a_long_evaluation_costs_a_write_when_it_is_known_to_be_long_and_one_at_its_end(
    training_run: Run,
) -> None:
    until_written(training_run)
    training_run.cluster.evaluating = True
    assert seconds(training_run, 120) == 1
    assert training_run.status["phase"] == "Evaluating"
    assert training_run.condition("Ready")["status"] == "True"
    training_run.cluster.evaluating = False
    assert seconds(training_run, 1) == 1
    assert training_run.status["phase"] == "Training"


def lose_a_pod(run: Run) -> None:
    """A pod fails, and is replaced by a pod that has to start; the other one notices nothing yet."""
    run.cluster.fail(run.cluster.pods[1], 137, "was killed")


def recovered(run: Run) -> Any:
    """The last incident, once the run has recovered from it."""
    run.until(lambda: bool(run.incidents) and run.incidents[-1].get("recoveredAt") is not None)
    return run.incidents[-1]


def test_an_incident_has_the_iteration_that_was_reached_not_the_one_written(training_run: Run) -> None:
    reached = until_unwritten(training_run)
    lose_a_pod(training_run)
    seconds(training_run, 1)
    incident = recovered(training_run)
    assert incident["iteration"] == reached
    assert incident["lostIterations"] == reached - training_run.cluster.resumed_from


def test_a_run_that_is_suspended_has_its_last_iteration(training_run: Run) -> None:
    reached = until_unwritten(training_run)
    training_run.edit(suspend=True)
    training_run.operator.reconcile()
    assert training_run.status["phase"] == "Suspended"
    assert training_run.status["progress"]["iteration"] == reached


def test_an_edit_of_the_count_has_the_iteration_that_was_reached(training_run: Run) -> None:
    reached = until_unwritten(training_run)
    training_run.edit_count(8)
    training_run.operator.reconcile()
    assert training_run.incidents[-1]["kind"] == "resize"
    assert training_run.incidents[-1]["iteration"] == reached

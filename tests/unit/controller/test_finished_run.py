"""The operator over a simulated cluster: `ttlSecondsAfterFinished` of runs that end."""

import pytest

from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run


@pytest.mark.parametrize("writes", [None, 0, 1, 2])
def test_a_finished_runs_job_is_deleted_and_the_rest_stays(training_run: Run, writes: int | None) -> None:
    run = training_run
    job = run.cluster.job
    run.edit(ttlSecondsAfterFinished=50)
    run.until(lambda: run.status["observedGeneration"] == 2)
    assert run.cluster.job is job, "the field is none of the job's"
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded")
    ended, status = run.cluster.now, run.status
    assert run.cluster.job is job
    run.operator.die_after(writes)
    run.until(lambda: run.cluster.job is None)
    assert run.cluster.now - ended >= 50
    for _ in range(20):
        run.cluster.pass_time(1)
        run.operator.reconcile()
    assert run.cluster.job is None, "it is not created again"
    assert run.status == status
    assert CLAIM in run.api.claims


def test_a_finished_run_that_is_made_longer_starts_again_without_its_job(training_run: Run) -> None:
    run = training_run
    run.edit(ttlSecondsAfterFinished=0)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded" and run.cluster.job is None)
    run.cluster.succeeded = False
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    run.until(lambda: run.cluster.job is not None)

"""The operator over a simulated cluster: `ttlSecondsAfterFinished` of runs that end."""

import pytest
from megatron_operator.controller.capacity_finder import CapacityFinder

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


def test_a_finished_run_that_is_made_longer_has_not_succeeded_while_it_waits_to_start_again(
    training_run: Run,
) -> None:
    run = training_run
    run.edit(ttlSecondsAfterFinished=0)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded" and run.cluster.job is None)
    del run.api.claims[CLAIM]
    run.edit(checkpoint=run.api.recipe["spec"]["checkpoint"] | {"saveInterval": 77})
    run.until(lambda: run.condition("Running")["reason"] == "VolumeClaimMissing")
    assert run.condition("Succeeded") == {}


def test_an_edit_of_a_finished_run_is_done_though_its_claim_is_gone(training_run: Run) -> None:
    run = training_run
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded")
    del run.api.claims[CLAIM]
    run.edit(ttlSecondsAfterFinished=0)
    run.until(lambda: run.cluster.job is None)
    assert run.status["phase"] == "Succeeded"
    assert run.status["observedGeneration"] == 2


def test_a_finished_run_that_is_made_longer_keeps_its_job_while_its_claim_is_missing(
    training_run: Run,
) -> None:
    run = training_run
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded")
    job, spec = run.cluster.job, run.api.recipe["spec"]
    del run.api.claims[CLAIM]
    run.edit(checkpoint=spec["checkpoint"] | {"saveInterval": 77})
    run.until(lambda: run.condition("Running")["reason"] == "VolumeClaimMissing")
    assert run.condition("Succeeded") == {}
    assert run.cluster.job is job
    run.edit(checkpoint=spec["checkpoint"])
    run.until(lambda: run.status["phase"] == "Succeeded")
    assert run.cluster.job is job, "set back, it is not trained again"


@pytest.mark.parametrize("edit", [{"suspend": True}, {"env": {"DEBUG": "1"}}])
def test_a_run_that_is_suspended_or_whose_job_is_replaced_keeps_no_places(
    edit: dict[str, object], training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = []
    monkeypatch.setattr(CapacityFinder, "give_up_places", lambda _, key: given_up.append(key))
    job = training_run.cluster.job
    training_run.edit(**edit)
    training_run.until(lambda: training_run.cluster.job is not job)
    assert given_up


def test_a_finished_run_without_its_job_stays_finished_while_it_is_suspended_and_after(
    training_run: Run,
) -> None:
    run = training_run
    run.edit(ttlSecondsAfterFinished=0)
    run.cluster.iteration = TOTAL - 5
    run.until(lambda: run.status["phase"] == "Succeeded" and run.cluster.job is None)
    for suspend in (True, False):
        run.edit(suspend=suspend)
        generation = run.api.recipe["metadata"]["generation"]
        run.until(lambda generation=generation: run.status["observedGeneration"] == generation)
        for _ in range(20):
            run.cluster.pass_time(1)
            run.operator.reconcile()
        assert run.status["phase"] == "Succeeded"
        assert run.cluster.job is None, "it is not trained again"


def test_a_run_that_is_made_shorter_than_its_checkpoint_reports_the_new_length(training_run: Run) -> None:
    run = training_run
    run.edit(training={"trainIters": TOTAL})
    run.until(lambda: run.trains() and run.status["checkpoint"].get("iteration", 0) >= 150)
    reached = run.status["checkpoint"]["iteration"]
    job = run.cluster.job
    run.edit(training={"trainIters": 100, "lrWarmupIters": 10})
    run.until(lambda: run.cluster.job not in (None, job))
    # Its pods find the checkpoint before they meet, and report nothing.
    run.operator.reachable, run.cluster.succeeded = False, True
    run.until(lambda: run.status["phase"] == "Succeeded")
    progress, saved = run.status["progress"], run.status["checkpoint"]["iteration"]
    assert saved >= reached
    assert (progress["iteration"], progress["trainIters"]) == (saved, 100)
    assert progress["display"] == f"{saved}/100"
    assert run.condition("Succeeded")["message"] == "all 100 iterations are complete"

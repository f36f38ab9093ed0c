"""Runs that have trained are edited or suspended before, while and after their weights are exported."""

from collections.abc import Iterator

import pytest

from tests.unit.controller.converting import (
    EXPORT,
    REFUSED,
    RESULT,
    converting_run,
    end,
    reconcile,
    until_exporting,
)
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


def delete_job(run: Run) -> None:
    """Somebody deletes the training job."""
    run.api._job = None
    run.cluster.delete_job()


def test_a_failed_export_is_retried_by_a_suspension_without_training_again_when_the_job_has_expired(
    run: Run,
) -> None:
    run.edit(ttlSecondsAfterFinished=0)
    until_exporting(run)
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert run.api.job() is None
    for suspend in (True, False):
        run.edit(suspend=suspend)
        reconcile(run)
        assert run.status["phase"] == "Exporting"
        assert run.api.job() is None
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None


def test_a_run_that_exports_is_not_suspended_though_its_job_was_deleted(run: Run) -> None:
    until_exporting(run)
    delete_job(run)
    run.edit(suspend=True)
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    run.edit(suspend=False)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None


def test_a_finished_run_that_is_made_longer_and_suspended_at_once_trains_on_once_it_continues(
    run: Run,
) -> None:
    run.edit(ttlSecondsAfterFinished=0)
    until_exporting(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.api.job() is None
    run.edit(suspend=True, env={"DEBUG": "1"})
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None
    run.edit(suspend=False)
    run.until(lambda: run.api.job() is not None)
    assert run.condition("Succeeded") == {}

"""When the Jobs of a run that has ended are deleted."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition
from megatron_operator.lifecycle.actions import DONE, DeleteJob, DeleteRuntime, DeleteStageJobs
from megatron_operator.lifecycle.finished_job import expire_job
from megatron_operator.lifecycle.status_builder import StatusBuilder
from megatron_operator.manifests import trainjob


def ended(run: Any, condition: Condition, **spec: Any) -> StatusBuilder:
    """The status of a run that ended 100 seconds ago."""
    run.body["spec"] = spec
    status = run.status()
    status.set_condition(condition, True, "Ended")
    run.write(status)
    run.pass_time(100)
    later: StatusBuilder = run.status()
    return later


@pytest.mark.parametrize("condition", [Condition.SUCCEEDED, Condition.FAILED])
@pytest.mark.parametrize("ttl", [0, 99, 100])
def test_the_job_is_deleted_once_the_time_has_passed(run: Any, condition: Condition, ttl: int) -> None:
    status = ended(run, condition, ttlSecondsAfterFinished=ttl)
    result = expire_job(status, run.snapshot())
    others = DeleteStageJobs(*status.key, status.uid)
    assert result.actions == (others, DeleteJob(run.job)), "by the training job is seen what is left to do"
    assert result.requeue is None
    run.job = None
    assert expire_job(status, run.snapshot()).actions == (others,), "an export may have followed"


def test_the_runtime_of_a_trainjob_is_deleted_with_it(run: Any) -> None:
    run.job["apiVersion"] = f"{trainjob.GROUP}/{trainjob.VERSION}"
    status = ended(run, Condition.SUCCEEDED, ttlSecondsAfterFinished=0)
    actions = expire_job(status, run.snapshot()).actions
    assert actions[1:] == (DeleteRuntime(run.job), DeleteJob(run.job)), "the job shows what is left to do"


def test_until_then_the_run_is_reconciled_again_when_it_is_time(run: Any) -> None:
    status = ended(run, Condition.SUCCEEDED, ttlSecondsAfterFinished=3600)
    result = expire_job(status, run.snapshot())
    assert result.actions == ()
    assert result.requeue is not None
    assert result.requeue.after == 3500


def test_without_the_field_or_while_the_job_ends_nothing_is_done(run: Any) -> None:
    assert expire_job(ended(run, Condition.SUCCEEDED), run.snapshot()) == DONE
    status = ended(run, Condition.SUCCEEDED, ttlSecondsAfterFinished=0)
    run.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert expire_job(status, run.snapshot()) == DONE


def test_a_run_that_has_not_ended_keeps_its_job(run: Any) -> None:
    run.body["spec"] = {"ttlSecondsAfterFinished": 0}
    assert expire_job(run.status(), run.snapshot()) == DONE

"""An edit waits, and the run goes on, while an admission policy refuses to have its job deleted."""

from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBS

from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run

DENIED = 'admission webhook "protect" denied the request'


class Policy:
    """Refuses to have training jobs deleted, while it is `active`."""

    def __init__(self, run: Run) -> None:
        self.active = True
        self._delete = run.api.delete

    async def delete(self, resource: Any, *args: Any, **options: Any) -> None:
        if self.active and resource is JOBS:
            raise ApiError(403, "Forbidden", DENIED)
        await self._delete(resource, *args, **options)


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


@pytest.fixture
def policy(run: Run, monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = Policy(run)
    monkeypatch.setattr(run.api, "delete", policy.delete)
    return policy


def test_an_edit_shows_why_the_job_is_not_replaced_and_is_applied_once_it_can_be(
    run: Run, policy: Policy
) -> None:
    job = run.api.job()
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: run.condition("Prepared")["reason"] == "JobRefused")
    assert DENIED in run.condition("Prepared")["message"]
    assert run.status["observedGeneration"] == 1
    assert (run.condition("Ready")["status"], run.condition("Stalled")["status"]) == ("False", "True")
    assert (run.status["phase"], run.api.job()) == ("Training", job)
    policy.active = False
    run.until(lambda: run.status["observedGeneration"] == 2 and run.trains())
    assert run.condition("Prepared")["status"] == "True"
    assert run.api.job() != job


def test_a_run_whose_job_is_not_replaced_is_restarted_when_it_hangs(run: Run, policy: Policy) -> None:
    del policy
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: run.condition("Prepared")["reason"] == "JobRefused")
    run.cluster.hanging = True
    run.until(lambda: bool(run.incidents), 3000)
    assert run.incidents[-1]["hang"]
    run.until(run.trains)


def test_a_run_that_is_to_train_on_waits_until_its_job_can_be_replaced(run: Run, policy: Policy) -> None:
    run.cluster.pass_time(TOTAL)
    run.until(lambda: run.status["phase"] == "Succeeded")
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: run.status["phase"] == "Pending")
    assert (run.condition("Running")["reason"], run.condition("Succeeded")) == ("JobRefused", {})
    job = run.api.job()
    policy.active = False
    run.until(lambda: run.api.job() not in (None, job))

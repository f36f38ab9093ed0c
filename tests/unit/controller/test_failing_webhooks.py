"""Admission webhooks of the job's controller that do not respond: the run reports that, and goes on later."""

from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBS, Resource

from tests.unit.controller.simulated_run import Run
from tests.unit.controller.test_cordon_without_rights import cordon

FAILED = ApiError(
    500,
    "InternalError",
    'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": '
    'no endpoints available for service "training-operator"',
)


class Webhook:
    """That of training jobs, which does not respond while it is `down`."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down = True
        self._before = run.api.create, run.api.merge
        monkeypatch.setattr(run.api, "create", self.create)
        monkeypatch.setattr(run.api, "merge", self.merge)

    async def create(self, resource: Resource, body: Any) -> Any:
        self._admit(resource)
        return await self._before[0](resource, body)

    async def merge(self, resource: Resource, *rest: Any) -> Any:
        self._admit(resource)
        return await self._before[1](resource, *rest)

    def _admit(self, resource: Resource) -> None:
        if self.down and resource is JOBS:
            raise FAILED


def test_a_new_recipe_reports_the_webhook_and_starts_once_it_responds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    webhook = Webhook(run, monkeypatch)
    run.operator.reconcile()
    assert (run.status["phase"], run.condition("Running")["reason"]) == ("Pending", "JobRefused")
    assert run.condition("Running")["message"] == FAILED.message
    webhook.down = False
    run.until(run.trains)
    run.operator.close()


def test_an_edited_run_reports_the_webhook_and_goes_on_once_it_responds(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, webhook = training_run, Webhook(training_run, monkeypatch)
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: run.condition("Running")["reason"] == "JobRefused")
    assert run.condition("Running")["message"] == FAILED.message
    webhook.down = False
    run.until(run.trains)


def test_a_job_whose_priority_cannot_be_changed_for_the_webhook_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    run.api.workload_priority_classes = {"low", "high"}
    run.edit(scheduling={"queue": "research", "workloadPriorityClassName": "low"})
    run.until(lambda: run.api.job() is not None)
    before: Any = run.api.job()
    webhook = Webhook(run, monkeypatch)
    run.edit(scheduling={"queue": "research", "workloadPriorityClassName": "high"})
    with pytest.raises(ApiError, match="failed calling webhook"):
        run.operator.reconcile()
    webhook.down = False
    run.until(lambda: bool(run.status["observedGeneration"] == 3))
    job: Any = run.api.job()
    assert job["metadata"]["uid"] == before["metadata"]["uid"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    run.operator.close()


async def test_a_node_that_a_webhook_keeps_from_being_cordoned_is_an_event_without_advice_on_rights() -> None:
    [event] = await cordon(FAILED)
    assert event.message == f"this run avoids node n1, but it is not cordoned: {FAILED.message}"

"""An admission policy refuses to have a job deleted: an edit waits, the run goes on, an Event shows why."""

from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBS

from tests.unit.controller.deletion_policy import DENIED, Policy
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run(training_run: Run) -> Run:
    return training_run


@pytest.fixture
def policy(run: Run, monkeypatch: pytest.MonkeyPatch) -> Policy:
    policy = Policy(run, JOBS)
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


def reconcile(run: Run, times: int) -> None:
    """The operator tries again after each refusal."""
    for _ in range(times):
        run.cluster.pass_time(1)
        try:
            run.operator.reconcile()
        except ApiError:
            continue


def refusals(run: Run) -> list[str]:
    """Messages of the Events, each of which the API server stores once."""
    events = {each["metadata"]["name"]: each for each in run.api.posted}
    return [each["message"] for each in events.values() if each["reason"] == "JobRefused"]


def test_an_event_shows_why_a_suspended_run_trains_on(run: Run, policy: Policy) -> None:
    del policy
    run.edit(suspend=True)
    reconcile(run, 5)
    [message] = refusals(run)
    assert message == f"the run's job or pods are not changed, which is tried again: {DENIED}"


def test_an_error_that_is_no_refusal_brings_no_event(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ApiError(500, "InternalError", "etcd has no leader")

    monkeypatch.setattr(run.api, "delete", fail)
    run.edit(suspend=True)
    with pytest.raises(ApiError):
        run.operator.reconcile()
    assert not refusals(run)


def test_an_edited_run_that_trains_on_after_its_failure_has_not_failed(run: Run, policy: Policy) -> None:
    run.edit(recovery={"maxRestarts": 0})
    run.until(lambda: bool(run.status["observedGeneration"] == 2))
    run.cluster.poisoned = True
    run.cluster.fail(run.cluster.pods[1], 137, "died")
    reconcile(run, 150)
    assert run.condition("Failed")["reason"] == "RestartsSpent"
    assert len(refusals(run)) == 1
    run.cluster.poisoned = False
    run.edit(recovery={"maxRestarts": 5})
    run.until(run.trains)
    assert run.condition("Failed") == {}
    assert policy.active


def test_a_failed_run_whose_job_an_edit_cannot_replace_waits_and_has_not_failed(
    run: Run, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, failed = run.api.job(), {"conditions": [{"type": "Failed", "status": "True"}]}
    assert job is not None
    with monkeypatch.context() as patch:
        patch.setattr(run.api, "job", lambda: job | {"status": failed})
        run.until(lambda: bool(run.status["phase"] == "Failed"))
        run.edit(env={"DEBUG": "1"})
        run.until(lambda: bool(run.status["phase"] == "Pending"))
        assert (run.condition("Running")["reason"], run.condition("Failed")) == ("JobRefused", {})
    policy.active = False
    run.until(lambda: run.api.job() not in (None, job) and run.trains())


def test_a_run_that_cannot_be_resized_is_restarted_when_it_hangs(run: Run, policy: Policy) -> None:
    policy.active = False
    run.edit(recovery={"elastic": {"minCount": 8, "shrinkAfter": 60, "growAfter": 60}})
    run.until(lambda: bool(run.status["observedGeneration"] == 2) and run.trains())
    run.cluster.nodes["node-2"].taken = True
    run.cluster.node_dies("node-1")
    run.until(lambda: run.trains(1), 1500)
    policy.active, run.cluster.nodes["node-2"].taken = True, False
    reconcile(run, 300)
    assert run.incidents[-1]["kind"] == "resize"
    before = run.api.job()
    run.cluster.hanging = True
    reconcile(run, 300)
    assert [each["number"] for each in run.incidents if each.get("hang")] == [len(run.incidents)]
    assert run.trains(1)
    assert run.api.job() == before
    policy.active = False
    run.until(run.trains)
    assert run.api.job() != before

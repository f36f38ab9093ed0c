"""A run that has spent its restarts fails: what is left of it, and its Event where the job is not deleted."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBS

from tests.unit.controller.simulated_run import Run


@pytest.fixture
def run() -> Iterator[Run]:
    """A run with a rank that fails at once in each pod, and with no restart to spend."""
    run = Run()
    run.edit(recovery={"maxRestarts": 0})
    run.until(run.trains)
    run.cluster.poisoned = True
    run.cluster.fail(run.cluster.pods[1], 137, "died")
    yield run
    run.operator.close()


def spent(run: Run) -> bool:
    return bool(run.condition("Failed").get("reason") == "RestartsSpent")


def test_a_run_that_has_spent_its_restarts_keeps_causes_and_history_but_neither_job_nor_pods(
    run: Run,
) -> None:
    run.until(lambda: spent(run) and not run.cluster.pods)
    assert run.api.job() is None
    assert "first cause: worker-0" in run.condition("Failed")["message"]
    assert [each["cause"] for each in run.incidents]


def test_the_event_of_a_failure_is_posted_once_though_the_job_is_not_deleted_at_first(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = run.api.delete, 2

    async def delete(resource: Any, *args: Any, **options: Any) -> None:
        nonlocal failures
        if resource is JOBS and failures:
            failures -= 1
            raise ApiError(500, "InternalError", "etcdserver: request timed out")
        await real(resource, *args, **options)

    monkeypatch.setattr(run.api, "delete", delete)
    for _ in range(60):
        run.cluster.pass_time(1)
        try:
            run.operator.reconcile()
        except ApiError:
            assert spent(run)
    assert not failures
    assert run.api.job() is None
    assert [each["reason"] for each in run.api.posted].count("RestartsSpent") == 1

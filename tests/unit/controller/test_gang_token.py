"""The operator gives each run a token that it never reads and never reports."""

import json
import logging
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import SECRETS, Resource

from tests.unit.controller.simulated_run import Run, lose_a_race_for_a_quota

EXCEEDED = "secrets is forbidden: exceeded quota"


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.operator.close()


def mounted(run: Run) -> str:
    """Name of the Secret that the job's pods mount."""
    template = run.api.job()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]  # type: ignore[index]
    volumes = template["spec"]["volumes"]
    return next(str(each["secret"]["secretName"]) for each in volumes if "secret" in each)


def token(run: Run) -> str:
    [secret] = run.api.secrets.values()
    return b64decode(secret["data"]["token"]).decode()


def test_the_secret_that_the_pods_mount_exists_and_has_a_random_token(run: Run) -> None:
    run.until(run.trains)
    assert list(run.api.secrets) == [mounted(run)]
    assert len(bytes.fromhex(token(run))) == 32
    other = Run()
    other.until(other.trains)
    other.operator.close()
    assert token(other) != token(run)


def test_the_token_stays_while_jobs_of_the_run_are_replaced(run: Run) -> None:
    run.until(run.trains)
    before = token(run)
    job = run.api.job()
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.api.job() is not None and run.api.job() != job and run.trains())
    assert token(run) == before


def test_the_token_is_in_no_status_event_or_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run.until(run.trains)
    secret = next(iter(run.api.secrets.values()))["data"]["token"]
    reported = json.dumps([run.api.recipe, run.api.posted, run.api.job()]) + caplog.text
    assert token(run) not in reported
    assert secret not in reported


def refuse_secrets(run: Run, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """The API server refuses Secrets, also one that exists: only then would it find that out."""
    create = run.api.create

    async def refuse(resource: Resource, body: Any) -> Any:
        if resource is SECRETS:
            raise ApiError(403, "Forbidden", message)
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", refuse)


def test_a_refused_secret_is_reported_and_the_job_is_not_created(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_secrets(run, monkeypatch, EXCEEDED)
    run.until(lambda: run.condition("Running").get("reason") == "JobRefused")
    assert run.condition("Running")["message"] == EXCEEDED
    assert run.api.job() is None


def test_the_job_is_created_with_its_secret_though_counts_of_a_quota_changed_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_a_race_for_a_quota(run, SECRETS, monkeypatch)
    with pytest.raises(ApiError, match="resourcequotas"):
        run.operator.reconcile()
    assert run.api.job() is None
    run.until(run.trains)
    assert list(run.api.secrets) == [mounted(run)]


@pytest.mark.parametrize("begun", [True, False], ids=["that has trained", "that has not begun"])
def test_the_job_of_a_run_is_replaced_with_its_token_while_a_quota_refuses_new_secrets(
    run: Run, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    run.until(run.trains if begun else lambda: "contract" in run.status.get("checkpoint", {}))
    before, job = token(run), run.api.job()
    assert bool(run.status.get("progress", {}).get("iteration")) == begun
    refuse_secrets(run, monkeypatch, EXCEEDED)
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.api.job() not in (None, job) and run.trains())
    assert token(run) == before


def test_a_secret_that_an_admission_policy_refuses_is_reported_for_a_run_that_has_trained(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.until(run.trains)
    refuse_secrets(run, monkeypatch, "admission policy denied the request")
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.condition("Running")["reason"] == "JobRefused")
    assert run.condition("Running")["message"] == "admission policy denied the request"

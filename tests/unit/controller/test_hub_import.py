"""A model of a hub in the whole operator: what the status has of its download."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.api.platform import Hub
from megatron_operator.lifecycle.progress_reading import ProgressReading

from tests.unit.controller import whole_operator
from tests.unit.controller.converting import CONVERTING, IMPORT, RESULT, SPEC, end, reconcile
from tests.unit.controller.simulated_run import Run, run_on

NAME = "meta-llama/Llama-3.1-8B"
FOLDER = f"/data/hub/{NAME}/main"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSED = f"error: {NAME}: https://huggingface.co refuses the token (401); correct the Secret"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    platform = whole_operator.CONFIG.platform.model_copy(update={"hub": Hub(enabled=True)})
    with run_on(platform, monkeypatch) as made:
        made.edit(**SPEC | {"init": {"from": {"huggingFace": {"name": NAME}}}})
        yield made


def test_a_name_is_imported_from_its_folder_and_the_status_has_its_commit(run: Run) -> None:
    reconcile(run)
    assert run.status["phase"] == "Importing"
    end(run, IMPORT, message=RESULT | {"revision": COMMIT})
    run.until(run.trains)
    imported = run.status["imported"]
    assert (imported["source"], imported["path"]) == (FOLDER, f"{FOLDER}-megatron")
    assert imported["revision"] == COMMIT


def test_the_status_has_the_bytes_of_a_download(run: Run) -> None:
    reconcile(run)
    poller: Any = run.operator._progress
    progress = CONVERTING | {"step": "download", "tensorsDone": 0, "tensorsTotal": 0}
    report = {"schema": 1, "phase": "converting", "conversion": progress}
    # The stand-in would answer for the pods of the training.
    poller.poll = lambda: None
    poller._reading = ProgressReading(ProgressReport.parse(report), 0.0)
    reconcile(run, 1)
    assert run.status["conversion"] == progress


def test_a_refusal_of_the_hub_ends_the_run_and_another_secret_tries_again(run: Run) -> None:
    reconcile(run)
    end(run, IMPORT, message={"message": REFUSED, "exitCode": 2})
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert run.condition("Failed")["reason"] == "ImportFailed"
    assert REFUSED in run.condition("Failed")["message"]
    token = {"name": "hub", "key": "token"}
    run.edit(init={"from": {"huggingFace": {"name": NAME, "secretKeyRef": token}}})
    reconcile(run)
    assert run.status["phase"] == "Importing"


def test_another_revision_is_another_import_until_the_run_has_a_checkpoint(run: Run) -> None:
    reconcile(run)
    run.edit(init={"from": {"huggingFace": {"name": NAME, "revision": "v2"}}})
    reconcile(run)
    (container,) = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"]
    assert f"/data/hub/{NAME}/v2" in container["args"]
    end(run, IMPORT, message=RESULT)
    run.until(lambda: (run.status.get("checkpoint") or {}).get("iteration") is not None)
    run.edit(init={"from": {"huggingFace": {"name": NAME}}})
    reconcile(run)
    assert run.condition("Planned")["reason"] == "CheckpointIncompatible"
    assert run.status["phase"] == "Training"


def test_without_a_hub_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_on(whole_operator.CONFIG.platform, monkeypatch) as run:
        run.edit(**SPEC | {"init": {"from": {"huggingFace": {"name": NAME}}}})
        reconcile(run)
        assert "platform.hub.enabled is false" in run.condition("Planned")["message"]
        assert IMPORT not in run.api.batch_jobs

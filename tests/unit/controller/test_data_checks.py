"""Data that were prepared elsewhere are checked before the run, once, and never in the way of a run."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.lifecycle.progress_reading import ProgressReading

from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.simulated_run import CLAIM, Run

BLEND = {
    "volume": {"claimName": CLAIM},
    "tokenizer": {"tokenizerType": "NullTokenizer"},
    "blend": [{"path": "web_text_document"}],
}
CHECK = f"{NAME}-check"


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.operator.close()


def begin(run: Run) -> None:
    run.edit(data=BLEND)
    run.operator.reconcile()


def end_check(run: Run, code: int, message: str) -> None:
    """The Job of the check, and its pod, end."""
    text = json.dumps({"reason": "Completed", "message": message, "exitCode": code})
    state = {"terminated": {"exitCode": code, "message": text}}
    pod = {
        "metadata": {"name": f"{CHECK}-x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"containerStatuses": [{"name": "check", "state": state}]},
    }
    run.api.batch_pods = [pod]
    kind = "Failed" if code else "Complete"
    condition = {"type": kind, "status": "True", "message": "a pod ended"}
    run.api.batch_jobs[CHECK]["status"] = {"conditions": [condition]}


def settle(run: Run) -> None:
    for _ in range(4):
        run.operator.reconcile()


def test_a_run_is_checking_until_its_data_have_passed_and_then_starts(run: Run) -> None:
    begin(run)
    assert (run.status["phase"], run.condition("Prepared")["reason"]) == ("Checking", "Checking")
    assert run.api.job() is None
    poller: Any = run.operator._progress
    progress = {"documents": 0, "bytesDone": 50, "bytesTotal": 200, "step": "check"}
    body = {"schema": 1, "phase": "preparing", "preparation": progress}
    poller._reading = ProgressReading(ProgressReport.parse(body), 0.0)
    run.operator.reconcile()
    assert (run.status["phase"], run.status["preparation"]["bytesTotal"]) == ("Checking", 200)
    warning = "1 datasets are checked; warning: no index of the samples: read-only"
    end_check(run, 0, warning)
    settle(run)
    prepared = run.condition("Prepared")
    assert (prepared["status"], prepared["reason"], prepared["message"]) == ("True", "Checked", warning)
    assert run.status.get("preparation") is None
    run.until(run.trains)


def test_a_check_that_fails_ends_the_run_with_its_message_and_an_edit_checks_again(run: Run) -> None:
    begin(run)
    end_check(run, 65, "data.blend[0].path: /data/web_text_document.idx does not exist")
    run.operator.reconcile()
    assert run.status["phase"] == "Failed"
    failed = run.condition("Failed")
    assert failed["reason"] == "CheckFailed"
    assert "check failed: x: data.blend[0].path: /data/web_text_document.idx does" in failed["message"]
    assert run.api.job() is None
    run.api.batch_pods = []
    run.edit(data=BLEND | {"maxEpochs": 2})
    settle(run)
    assert (run.status["phase"], "status" in run.api.batch_jobs[CHECK]) == ("Checking", False)


def fail(run: Run) -> None:
    """The check fails, and the run with it."""
    end_check(run, 65, "data.blend[0].path: /data/web_text_document.idx does not exist")
    settle(run)
    assert (run.status["phase"], run.condition("Failed")["reason"]) == ("Failed", "CheckFailed")
    run.api.batch_pods = []


def test_a_failed_check_is_tried_again_once_the_claim_that_the_edit_waits_for_exists(run: Run) -> None:
    begin(run)
    fail(run)
    claim = run.api.claims.pop(CLAIM)
    for suspend in (True, False):
        run.edit(suspend=suspend)
        settle(run)
    assert run.condition("Running")["reason"] == "VolumeClaimMissing"
    run.api.claims[CLAIM] = claim
    settle(run)
    assert (run.status["phase"], "status" in run.api.batch_jobs[CHECK]) == ("Checking", False)
    assert run.condition("Failed") == {}
    fail(run)


def test_a_check_that_an_edit_has_left_running_ends_the_run_when_it_fails(run: Run) -> None:
    begin(run)
    run.edit(ttlSecondsAfterFinished=3600)
    settle(run)
    assert run.status["phase"] == "Checking"
    fail(run)


def test_a_check_that_had_failed_is_tried_again_where_a_later_edit_brings_it_back(run: Run) -> None:
    begin(run)
    fail(run)
    run.edit(data=BLEND | {"check": False})
    run.until(lambda: run.api.job() is not None)
    run.edit(data=BLEND, env={"DEBUG": "1"})
    failed = run.api.batch_jobs[CHECK]
    run.until(lambda: run.api.batch_jobs.get(CHECK, failed) is not failed)
    assert run.status["phase"] == "Checking"


def test_a_run_whose_check_has_failed_starts_without_one(run: Run) -> None:
    begin(run)
    end_check(run, 65, "data.blend[0].path: /data/web_text_document.idx does not exist")
    run.operator.reconcile()
    assert run.status["phase"] == "Failed"
    run.edit(data=BLEND | {"check": False})
    run.until(run.trains)
    prepared = run.condition("Prepared")
    assert (prepared["status"], prepared["reason"]) == ("True", "NothingToPrepare")
    assert run.status["prepared"] == "unchecked"


def test_data_that_have_passed_are_not_checked_again_until_what_is_read_changes(run: Run) -> None:
    begin(run)
    end_check(run, 0, "checked")
    run.until(run.trains)
    del run.api.batch_jobs[CHECK]
    run.edit(image="registry.example/megatron-trainer:9.9")
    run.until(lambda: run.trains() and run.status["observedGeneration"] == 3)
    assert CHECK not in run.api.batch_jobs
    assert run.condition("Prepared")["reason"] == "Checked"
    run.edit(data=BLEND | {"blend": [{"path": "other_text_document"}]})
    run.until(lambda: CHECK in run.api.batch_jobs)
    assert run.status["phase"] == "Checking"


@pytest.mark.parametrize("before", [BLEND | {"check": False}, {"mockData": True}], ids=["unchecked", "mock"])
def test_data_of_an_edit_are_checked_though_those_that_the_run_began_with_were_not(
    run: Run, before: dict[str, Any]
) -> None:
    run.edit(data=before)
    run.until(run.trains)
    assert CHECK not in run.api.batch_jobs
    run.edit(data=BLEND | {"blend": [{"path": "other_text_document"}]})
    run.until(lambda: CHECK in run.api.batch_jobs)
    assert (run.status["phase"], run.condition("Prepared")["reason"]) == ("Checking", "Checking")
    end_check(run, 0, "checked")
    run.until(run.trains)
    assert run.condition("Prepared")["reason"] == "Checked"


def test_data_that_are_no_longer_left_unchecked_are_checked_at_the_next_start(run: Run) -> None:
    run.edit(data=BLEND | {"check": False})
    run.until(run.trains)
    run.edit(data=BLEND)
    run.until(lambda: run.trains() and run.status["observedGeneration"] == 3)
    assert CHECK not in run.api.batch_jobs
    assert run.condition("Prepared")["reason"] == "NothingToPrepare"
    run.edit(env={"DEBUG": "1"})
    run.until(lambda: CHECK in run.api.batch_jobs)


def test_a_run_that_an_earlier_release_began_is_never_stopped_for_a_check(run: Run) -> None:
    begin(run)
    end_check(run, 0, "checked")
    run.until(run.trains)
    # What that release has left: no check of the data, and no Job of one.
    run.api.recipe["status"].pop("prepared")
    run.api.batch_jobs.clear()
    for change in ({"image": "registry.example/megatron-trainer:9.9"}, {"data": BLEND | {"numWorkers": 1}}):
        run.edit(**change)
        generation = run.api.recipe["metadata"]["generation"]
        run.until(lambda wanted=generation: run.trains() and run.status["observedGeneration"] == wanted)
        assert CHECK not in run.api.batch_jobs
        assert "prepared" not in run.status
        assert run.condition("Prepared")["status"] == "True"
    run.edit(suspend=True)
    run.until(lambda: run.status["phase"] == "Suspended")
    run.edit(suspend=False)
    run.until(run.trains)
    assert CHECK not in run.api.batch_jobs

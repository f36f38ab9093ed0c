"""Weights are imported before the job exists and exported once it has succeeded, by Jobs of their own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.api.labels import ANNOTATION_GENERATION, ANNOTATION_HASH, LABEL_RECIPE
from megatron_operator.lifecycle.progress_reading import ProgressReading

from tests.unit.controller.api_in_memory import NAME, NAMESPACE
from tests.unit.controller.converting import (
    CONVERTING,
    EXPORT,
    IMPORT,
    REFUSED,
    RESULT,
    SPEC,
    converting_run,
    end,
    events,
    reconcile,
    train_to_the_end,
    until_exporting,
)
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


def test_the_job_is_created_once_the_weights_are_imported(run: Run) -> None:
    reconcile(run)
    assert run.status["phase"] == "Importing"
    assert (run.condition("Imported")["status"], run.condition("Imported")["reason"]) == (
        "False",
        "Importing",
    )
    assert run.condition("Ready")["status"] == "False"
    assert run.cluster.job is None
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    assert run.status["imported"] == {
        "source": "/data/llama",
        "path": "/data/llama-megatron",
        "tensors": 21,
        "bytes": 42_000,
        "audit": "/data/llama-megatron/conversion-audit.json",
    }
    assert "Imported" in events(run)
    assert run.condition("Imported")["status"] == "True"


def test_the_commit_of_a_model_that_was_downloaded_is_in_the_status(run: Run) -> None:
    reconcile(run)
    end(run, IMPORT, message=RESULT | {"revision": "0123456789abcdef0123456789abcdef01234567"})
    run.until(run.trains)
    assert run.status["imported"]["revision"] == "0123456789abcdef0123456789abcdef01234567"


def test_an_unchanged_recipe_imports_nothing_again(run: Run) -> None:
    reconcile(run)
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    del run.api.batch_jobs[IMPORT]
    run.edit(suspend=True)
    run.until(lambda: run.cluster.job is None and not run.cluster.pods)
    run.edit(suspend=False)
    run.until(run.trains)
    assert IMPORT not in run.api.batch_jobs


def test_a_failed_import_ends_the_run_with_its_message_and_an_edit_retries_it(run: Run) -> None:
    reconcile(run)
    end(run, IMPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    failed = run.condition("Failed")
    assert failed["reason"] == "ImportFailed"
    assert failed["message"] == "import failed: x: --from /data/llama has no config.json (exit code 2)"
    assert run.condition("Stalled")["status"] == "True"
    assert run.cluster.job is None
    run.edit(init={"from": {"huggingFace": {"path": "/data/other"}}})
    reconcile(run)
    assert run.status["phase"] == "Importing"
    arguments = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "/data/other" in arguments
    assert run.condition("Failed") == {}


def test_a_run_that_exports_has_not_succeeded_yet(run: Run) -> None:
    until_exporting(run)
    assert (run.condition("Exported")["status"], run.condition("Exported")["reason"]) == (
        "False",
        "Exporting",
    )
    assert run.condition("Ready")["status"] == "False"
    assert run.condition("Succeeded") == {}
    assert run.status["ledger"]["marks"][-1]["category"] == "idle"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.condition("Ready")["status"] == "True"
    assert run.status["exported"]["source"] == f"/checkpoints/{NAME}"
    assert (run.status["exported"]["path"], run.status["exported"]["tensors"]) == ("/data/out", 21)
    assert events(run)[-2:] == ["Exported", "Succeeded"]


def test_a_failed_export_is_retried_without_training_again(run: Run) -> None:
    until_exporting(run)
    job = run.api.job()
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert run.condition("Failed")["reason"] == "ExportFailed"
    assert "; --to is spec.export.huggingFace.path" in run.condition("Failed")["message"]
    run.edit(export={"huggingFace": {"path": "/data/elsewhere"}, "merge": True})
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    assert run.condition("Failed") == {}
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() == job


def test_a_failed_export_is_retried_without_training_again_when_the_job_has_expired(run: Run) -> None:
    run.edit(ttlSecondsAfterFinished=60)
    until_exporting(run)
    reconcile(run, 20)
    assert run.api.job() is not None, "a run that exports has not ended"
    end(run, EXPORT, message=REFUSED)
    reconcile(run, 20)
    assert run.api.job() is None
    run.edit(export={"huggingFace": {"path": "/data/elsewhere"}, "merge": True})
    reconcile(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None


def test_an_export_can_be_added_to_a_run_that_has_succeeded(run: Run) -> None:
    del run.api.recipe["spec"]["export"]
    train_to_the_end(run, "Succeeded")
    assert EXPORT not in run.api.batch_jobs
    run.edit(export=SPEC["export"])
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    assert run.condition("Succeeded") == {}
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("name", "phase", "kind"), [(IMPORT, "Pending", "Running"), (EXPORT, "Exporting", "Exported")]
)
def test_a_job_of_somebody_else_is_reported_and_left_alone(
    run: Run, name: str, phase: str, kind: str
) -> None:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": "other", "labels": {LABEL_RECIPE: "another"}}
    run.api.batch_jobs[name] = foreign = {"metadata": metadata, "spec": {}}
    if name == EXPORT:
        until_exporting(run)
    reconcile(run)
    assert run.status["phase"] == phase
    condition = run.condition(kind)
    assert condition["reason"] == "NameTaken"
    assert (
        condition["message"] == f"Job {name} exists and is not this recipe's; delete it, or rename the recipe"
    )
    assert run.condition("Stalled")["status"] == "True"
    assert run.api.batch_jobs[name] == foreign
    del run.api.batch_jobs[name]
    reconcile(run)
    assert name in run.api.batch_jobs


def test_an_edit_while_it_imports_replaces_the_job(run: Run) -> None:
    reconcile(run)
    run.edit(image="corrected")
    reconcile(run)
    container = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "corrected"
    assert run.status["phase"] == "Importing"


def test_a_claim_that_was_missing_is_no_reason_any_more_while_weights_are_imported(run: Run) -> None:
    claim = run.api.claims.pop(CLAIM)
    reconcile(run)
    assert run.condition("Running")["reason"] == "VolumeClaimMissing"
    run.api.claims[CLAIM] = claim
    run.until(lambda: run.status["phase"] == "Importing")
    assert run.condition("Running") == {}


def test_an_edit_while_a_claim_is_missing_replaces_the_import_once_it_exists(run: Run) -> None:
    reconcile(run)
    claim = run.api.claims.pop(CLAIM)
    run.edit(image="corrected")
    reconcile(run)
    assert run.condition("Running")["reason"] == "VolumeClaimMissing"
    run.api.claims[CLAIM] = claim
    reconcile(run)
    container = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "corrected"


@pytest.fixture(params=["noted", "created by a version that notes no generation"])
def upgraded(request: pytest.FixtureRequest, run: Run) -> Callable[[str], dict[str, Any]]:
    """Make the Job one that the operator rendered differently before its upgrade."""

    def upgrade(name: str) -> dict[str, Any]:
        job: dict[str, Any] = run.api.batch_jobs[name]
        job["metadata"]["annotations"][ANNOTATION_HASH] = "of another version"
        if request.param != "noted":
            del job["metadata"]["annotations"][ANNOTATION_GENERATION]
        return job

    return upgrade


def test_an_upgrade_restarts_no_conversion(run: Run, upgraded: Callable[[str], dict[str, Any]]) -> None:
    reconcile(run)
    imports = upgraded(IMPORT)
    reconcile(run)
    assert run.api.batch_jobs[IMPORT] is imports
    until_exporting(run)
    assert run.api.batch_jobs[IMPORT] is imports
    exports = upgraded(EXPORT)
    reconcile(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.api.batch_jobs[EXPORT] is exports
    assert run.status["phase"] == "Succeeded"


def test_an_edit_after_an_upgrade_replaces_the_job(
    run: Run, upgraded: Callable[[str], dict[str, Any]]
) -> None:
    reconcile(run)
    upgraded(IMPORT)
    reconcile(run)
    run.edit(image="corrected")
    reconcile(run)
    container = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "corrected"


def test_other_weights_are_imported_though_the_edit_came_before_the_upgrade(
    run: Run, upgraded: Callable[[str], dict[str, Any]]
) -> None:
    reconcile(run)
    upgraded(IMPORT)
    claim = run.api.claims.pop(CLAIM)
    run.edit(init={"from": {"huggingFace": {"path": "/data/other"}}})
    reconcile(run)
    run.api.claims[CLAIM] = claim
    reconcile(run)
    arguments = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "/data/other" in arguments


OWN_LOOP: dict[str, Any] = {
    "image": "bridge",
    "data": {"volume": {"claimName": CLAIM}, "mockData": True},
    "init": {"from": {"huggingFace": {"path": "/data/llama"}}},
}


@pytest.fixture
def continued() -> Iterator[Run]:
    """A run of Megatron's own loop, of no entry of the catalog, from imported weights."""
    run = Run()
    run.edit(**OWN_LOOP)
    yield run
    run.operator.close()


def model_of_import(run: Run) -> list[str]:
    words: list[str] = run.api.batch_jobs[IMPORT]["spec"]["template"]["spec"]["containers"][0]["args"]
    return words[words.index("--") + 1 :]


def test_another_model_is_compared_with_config_json_again_until_it_has_been_saved(continued: Run) -> None:
    run = continued
    reconcile(run)
    before = model_of_import(run)
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    assert run.status["imported"]["model"]
    run.edit(megatronArgs={"rotary-seq-len-interpolation-factor": 2})
    run.until(lambda: run.status["phase"] == "Importing" and run.cluster.job is None)
    reconcile(run)
    assert model_of_import(run) != before
    end(run, IMPORT, message=REFUSED)
    reconcile(run)
    assert run.condition("Failed")["reason"] == "ImportFailed"


def test_a_run_that_has_saved_does_not_import_again(continued: Run) -> None:
    run = continued
    reconcile(run)
    end(run, IMPORT, message=RESULT)
    run.until(lambda: (run.status.get("checkpoint") or {}).get("iteration") is not None)
    del run.api.batch_jobs[IMPORT]
    run.edit(megatronArgs={"log-throughput": True})
    reconcile(run, 5)
    run.until(run.trains)
    assert IMPORT not in run.api.batch_jobs


def answer(run: Run, phase: str, **body: Any) -> None:
    """What the pods of the conversion answered last."""
    poller: Any = run.operator._progress
    report = {"schema": 1, "phase": phase, "conversion": CONVERTING | body}
    # The stand-in would answer for the pods of the training.
    poller.poll = lambda: None
    poller._reading = ProgressReading(ProgressReport.parse(report), 0.0)


def test_the_status_has_the_progress_while_weights_are_converted(run: Run) -> None:
    reconcile(run)
    assert "conversion" not in run.status
    answer(run, "converting", tensorsDone=7)
    reconcile(run, 1)
    assert run.status["conversion"] == CONVERTING | {"tensorsDone": 7}
    end(run, IMPORT, message=RESULT)
    reconcile(run, 1)
    assert "conversion" not in run.status
    poller: Any = run.operator._progress
    assert poller._reading is None, "the answer of a pod that converted is forgotten"
    del poller.poll
    train_to_the_end(run, "Exporting")
    answer(run, "converting", step="audit", bytesDone=40)
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    assert run.status["conversion"] == CONVERTING | {"step": "audit", "bytesDone": 40}
    assert run.status["progress"]["iteration"] == TOTAL, "of the training"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert "conversion" not in run.status


def test_an_import_that_an_edit_replaces_leaves_no_progress(run: Run) -> None:
    reconcile(run)
    answer(run, "converting", tensorsDone=7)
    reconcile(run, 1)
    assert "conversion" in run.status
    poller: Any = run.operator._progress
    poller._reading = None
    run.edit(image="corrected")
    reconcile(run)
    assert run.status["phase"] == "Importing"
    assert "conversion" not in run.status


def test_an_import_that_an_edit_removes_leaves_no_progress(continued: Run) -> None:
    run = continued
    reconcile(run)
    answer(run, "converting", tensorsDone=7)
    reconcile(run, 1)
    assert "conversion" in run.status
    del run.api.recipe["spec"]["init"]
    run.edit(data=OWN_LOOP["data"])
    reconcile(run)
    assert "conversion" not in run.status


@pytest.mark.parametrize("change", [{"export": None}, {"megatronArgs": {"log-throughput": True}}])
def test_an_export_that_an_edit_ends_leaves_no_progress(continued: Run, change: dict[str, Any]) -> None:
    run = continued
    run.edit(export={"huggingFace": {"path": "/data/out"}})
    until_exporting(run)
    answer(run, "converting", tensorsDone=7)
    reconcile(run, 1)
    assert "conversion" in run.status
    poller: Any = run.operator._progress
    poller._reading = None
    run.edit(**change)
    reconcile(run)
    assert "conversion" not in run.status


def test_a_conversion_that_failed_has_no_progress(run: Run) -> None:
    reconcile(run)
    answer(run, "converting")
    reconcile(run, 1)
    end(run, IMPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert "conversion" not in run.status

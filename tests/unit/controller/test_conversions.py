"""Weights are imported before the job exists and exported once it has succeeded, by Jobs of their own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.lifecycle.progress_reading import ProgressReading

from tests.unit.controller.api_in_memory import NAME, NAMESPACE
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run

IMPORT, EXPORT = f"{NAME}-import", f"{NAME}-export"
RESULT = {"reason": "Completed", "message": "audit passed", "exitCode": 0, "tensors": 21, "bytes": 42_000}
CONVERTING = {
    "step": "convert",
    "tensorsDone": 2,
    "tensorsTotal": 21,
    "bytesDone": 4000,
    "bytesTotal": 42_000,
}
REFUSED = {"message": "--from /data/llama has no config.json", "exitCode": 2}
SPEC: dict[str, Any] = {
    "recipe": "llama3.1-8b-lora",
    "image": "bridge",
    "data": {"volume": {"claimName": CLAIM}, "mockData": True},
    "init": {"from": {"huggingFace": {"path": "/data/llama"}}},
    "export": {"huggingFace": {"path": "/data/out"}, "merge": True},
}


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    run.edit(**SPEC)
    yield run
    run.operator.close()


def reconcile(run: Run, times: int = 3) -> None:
    for _ in range(times):
        run.cluster.pass_time(5)
        run.operator.reconcile()


def end(run: Run, name: str, *, message: dict[str, Any]) -> None:
    """The Job of this name ends, with the termination message of its pod."""
    code = message["exitCode"]
    kind = "Complete" if code == 0 else "Failed"
    run.api.batch_jobs[name]["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    state = {"terminated": {"exitCode": code, "message": json.dumps(message)}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "convert", "state": state}]}
    run.api.batch_pods = [{"metadata": {"name": f"{name}-x"}, "spec": {}, "status": status}]


def train_to_the_end(run: Run, phase: str) -> None:
    """Import, and train until the run is in the phase that follows its last iteration."""
    reconcile(run)
    end(run, IMPORT, message=RESULT)
    run.until(run.trains)
    run.cluster.pass_time(TOTAL)
    run.until(lambda: run.status["phase"] == phase)


def until_exporting(run: Run) -> None:
    train_to_the_end(run, "Exporting")
    reconcile(run)


def events(run: Run) -> list[str]:
    return [event["reason"] for event in run.api.posted]


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


BEST = f"{NAME}-export-best"
TRAINING = {"trainIters": TOTAL, "evalInterval": 10}
RECORDED = ("path", "iteration", "validationLoss")


def export_when(run: Run, *moments: str) -> None:
    """The recipe exports these checkpoints, and evaluates each one that it saves."""
    run.edit(
        export=SPEC["export"] | {"when": list(moments)}, training=TRAINING, checkpoint={"saveInterval": 10}
    )


def arguments(run: Run, name: str) -> list[str]:
    return list(run.api.batch_jobs[name]["spec"]["template"]["spec"]["containers"][0]["args"])


def test_the_last_checkpoint_is_exported_and_then_the_best_each_into_a_folder_of_its_own(run: Run) -> None:
    export_when(run, "best", "end")
    until_exporting(run)
    assert BEST not in run.api.batch_jobs
    words = arguments(run, EXPORT)
    assert words[words.index("--to") + 1] == "/data/out/end"
    end(run, EXPORT, message=RESULT | {"iteration": TOTAL, "validationLoss": 2.5})
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    assert run.condition("Exported")["status"] == "False", "the best is left to do"
    words = arguments(run, BEST)
    assert words[words.index("--to") + 1] == "/data/out/best"
    assert words[words.index("--iteration") + 1] == "best"
    assert words[words.index("--link") + 1] == "/data/out/end"
    end(run, BEST, message=RESULT | {"iteration": 20, "validationLoss": 1.25})
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert [run.status["exported"][name] for name in RECORDED] == ["/data/out/end", TOTAL, 2.5]
    assert [run.status["exportedBest"][name] for name in RECORDED] == ["/data/out/best", 20, 1.25]
    assert run.condition("Exported")["message"] == (
        "/data/out/end: 21 tensors, 42,000 bytes, audit passed; /data/out/best has the best checkpoint, of "
        "iteration 20, validation loss 1.25: 21 tensors, 42,000 bytes, audit passed"
    )
    assert events(run)[-3:] == ["Exported", "Exported", "Succeeded"]


def test_a_best_checkpoint_that_is_the_last_one_too_is_reported_as_such(run: Run) -> None:
    export_when(run, "best", "end")
    until_exporting(run)
    for name in (EXPORT, BEST):
        end(run, name, message=RESULT | {"iteration": TOTAL, "validationLoss": 2.5})
        reconcile(run)
    expected = f"of iteration {TOTAL:,}, validation loss 2.5, which is the last one, in /data/out/end, too"
    assert expected in run.condition("Exported")["message"]


def test_the_best_alone_is_exported_to_the_path_itself(run: Run) -> None:
    export_when(run, "best")
    until_exporting(run)
    assert EXPORT not in run.api.batch_jobs
    words = arguments(run, BEST)
    assert words[words.index("--to") + 1] == "/data/out"
    assert "--link" not in words
    end(run, BEST, message=RESULT | {"iteration": 20, "validationLoss": 1.25})
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert "exported" not in run.status
    assert run.status["exportedBest"]["iteration"] == 20


def test_the_best_can_be_added_to_a_run_that_has_succeeded(run: Run) -> None:
    del run.api.recipe["spec"]["export"]
    run.edit(training=TRAINING, checkpoint={"saveInterval": 10})
    train_to_the_end(run, "Succeeded")
    first = run.api.job()
    export_when(run, "best")
    run.until(lambda: BEST in run.api.batch_jobs)
    assert run.api.job() != first, "the trainer checks which of the checkpoints is the best"
    end(run, BEST, message=RESULT | {"iteration": 20, "validationLoss": 1.25})
    reconcile(run)
    assert run.status["phase"] == "Succeeded"


def test_a_run_that_is_trained_further_exports_what_it_then_has(run: Run) -> None:
    export_when(run, "best", "end")
    until_exporting(run)
    for name in (EXPORT, BEST):
        end(run, name, message=RESULT | {"iteration": 1000, "validationLoss": 2.5})
        reconcile(run)
    assert run.status["phase"] == "Succeeded"
    run.edit(training=TRAINING | {"trainIters": TOTAL + 1000})
    run.until(lambda: run.status["phase"] == "Exporting")
    assert "status" not in run.api.batch_jobs[EXPORT], "the result of the previous training"
    assert BEST not in run.api.batch_jobs
    for name in (EXPORT, BEST):
        end(run, name, message=RESULT | {"iteration": TOTAL, "validationLoss": 1.5})
        reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert [run.status[name]["iteration"] for name in ("exported", "exportedBest")] == [TOTAL, TOTAL]


def test_an_edit_while_it_exports_ends_the_export_before_it_trains_again(run: Run) -> None:
    export_when(run, "end")
    until_exporting(run)
    exporting = run.api.batch_jobs[EXPORT]
    first = run.api.job()
    run.edit(training=TRAINING | {"trainIters": TOTAL + 1000})
    run.until(lambda: EXPORT not in run.api.batch_jobs)
    assert run.api.job() in (None, first)
    run.until(lambda: run.status["phase"] == "Exporting")
    assert run.api.batch_jobs[EXPORT] is not exporting


def test_only_the_best_is_exported_again_where_the_last_has_been(run: Run) -> None:
    export_when(run, "best", "end")
    until_exporting(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    end(run, BEST, message=REFUSED)
    reconcile(run)
    assert run.condition("Failed")["reason"] == "ExportFailed"
    assert "export of the best checkpoint failed" in run.condition("Failed")["message"]
    del run.api.batch_jobs[EXPORT]
    run.edit(ttlSecondsAfterFinished=10_000)
    reconcile(run)
    assert EXPORT not in run.api.batch_jobs
    end(run, BEST, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"


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


def test_a_conversion_that_failed_has_no_progress(run: Run) -> None:
    reconcile(run)
    answer(run, "converting")
    reconcile(run, 1)
    end(run, IMPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert "conversion" not in run.status

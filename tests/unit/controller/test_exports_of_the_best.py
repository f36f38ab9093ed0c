"""The last checkpoint and the best one are exported, each as `export.when` requests, also after an edit."""

from collections.abc import Iterator

import pytest

from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.converting import (
    EXPORT,
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
from tests.unit.controller.simulated_run import Run

BEST = f"{NAME}-export-best"
TRAINING = {"trainIters": TOTAL, "evalInterval": 10}
RECORDED = ("path", "iteration", "validationLoss")


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


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

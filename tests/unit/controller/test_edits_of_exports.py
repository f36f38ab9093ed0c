"""Runs that have trained are edited or suspended before, while and after their weights are exported."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import whole_operator
from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.converting import (
    EXPORT,
    REFUSED,
    RESULT,
    SPEC,
    converting_run,
    end,
    reconcile,
    train_to_the_end,
    until_exporting,
)
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import Run

BEST = f"{NAME}-export-best"


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


def until_trained(run: Run, phase: str) -> None:
    """Train a run that imports nothing until it is in the phase that follows its last iteration."""
    run.until(run.trains)
    run.cluster.pass_time(TOTAL)
    run.until(lambda: run.status["phase"] == phase)
    reconcile(run)


def delete_job(run: Run) -> None:
    """Somebody deletes the training job."""
    run.api._job = None
    run.cluster.delete_job()


def test_a_failed_export_is_retried_by_a_suspension_without_training_again_when_the_job_has_expired(
    run: Run,
) -> None:
    run.edit(ttlSecondsAfterFinished=0)
    until_exporting(run)
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    assert run.status["phase"] == "Failed"
    assert run.api.job() is None
    for suspend in (True, False):
        run.edit(suspend=suspend)
        reconcile(run)
        assert run.status["phase"] == "Exporting"
        assert run.api.job() is None
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None


def test_a_run_that_exports_is_not_suspended_though_its_job_was_deleted(run: Run) -> None:
    until_exporting(run)
    delete_job(run)
    run.edit(suspend=True)
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    run.edit(suspend=False)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None


def test_a_finished_run_that_is_made_longer_and_suspended_at_once_trains_on_once_it_continues(
    run: Run,
) -> None:
    run.edit(ttlSecondsAfterFinished=0)
    until_exporting(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.api.job() is None
    run.edit(suspend=True, env={"DEBUG": "1"})
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.api.job() is None
    run.edit(suspend=False)
    run.until(lambda: run.api.job() is not None)
    assert run.condition("Succeeded") == {}


@pytest.fixture
def of_own_loop() -> Iterator[Run]:
    """A run of Megatron's own loop that exports with the configuration of another folder."""
    run = Run()
    run.edit(image="bridge", data=SPEC["data"], export=export_with("/data/tokenizer"))
    yield run
    run.operator.close()


def export_with(base: str) -> dict[str, Any]:
    return {"huggingFace": {"path": "/data/out", "base": base}}


def test_a_complete_export_is_made_again_with_another_base_and_without_training(of_own_loop: Run) -> None:
    run = of_own_loop
    until_trained(run, "Exporting")
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["exported"]["base"] == "/data/tokenizer"
    job = run.api.job()
    run.edit(export=export_with("/data/corrected"))
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    words = run.api.batch_jobs[EXPORT]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert words[words.index("--base") + 1] == "/data/corrected"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert (run.status["phase"], run.status["exported"]["base"]) == ("Succeeded", "/data/corrected")
    assert run.api.job() == job


def test_an_export_of_a_release_that_recorded_no_base_is_not_made_again(of_own_loop: Run) -> None:
    run = of_own_loop
    until_trained(run, "Exporting")
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    del run.status["exported"]["base"], run.api.batch_jobs[EXPORT]
    run.edit(ttlSecondsAfterFinished=3600)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert EXPORT not in run.api.batch_jobs


def refuse(run: Run) -> dict[str, Any]:
    """An edit that is refused; returns what sets it back."""
    before = run.api.recipe["spec"]["accelerator"]
    run.edit(accelerator={"type": "unknown", "count": 16})
    reconcile(run)
    assert run.condition("Planned")["reason"] == "Refused"
    return {"accelerator": before}


@pytest.mark.parametrize("deleted", [False, True])
def test_an_export_that_is_under_way_ends_the_run_though_an_edit_is_refused(run: Run, deleted: bool) -> None:
    until_exporting(run)
    if deleted:
        delete_job(run)
    job, export = run.api.job(), run.api.batch_jobs[EXPORT]
    back = refuse(run)
    assert run.status["phase"] == "Exporting"
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.condition("Planned")["reason"] == "Refused"
    assert (run.status["exported"]["path"], run.status["exported"]["tensors"]) == ("/data/out", 21)
    run.edit(**back)
    reconcile(run)
    assert (run.status["phase"], run.condition("Planned")["status"]) == ("Succeeded", "True")
    assert (run.api.job(), run.api.batch_jobs[EXPORT]) == (job, export)


def test_an_export_that_fails_while_an_edit_is_refused_ends_the_run(run: Run) -> None:
    until_exporting(run)
    refuse(run)
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    assert (run.status["phase"], run.condition("Failed")["reason"]) == ("Failed", "ExportFailed")


def test_a_second_export_waits_until_a_refused_edit_is_set_back(run: Run) -> None:
    training = {"trainIters": TOTAL, "evalInterval": 10}
    export = SPEC["export"] | {"when": ["best", "end"]}
    run.edit(export=export, training=training, checkpoint={"saveInterval": 10})
    until_exporting(run)
    back = refuse(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Exporting"
    assert run.status["exported"]["path"] == "/data/out/end"
    assert run.condition("Exported")["message"].startswith("an export job is due")
    assert BEST not in run.api.batch_jobs
    run.edit(**back)
    reconcile(run)
    end(run, BEST, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"


def test_an_export_that_was_added_after_the_job_had_expired_ends_though_a_later_edit_is_refused(
    run: Run,
) -> None:
    run.edit(ttlSecondsAfterFinished=0, export=None)
    train_to_the_end(run, "Succeeded")
    reconcile(run)
    assert run.api.job() is None
    run.edit(export=SPEC["export"])
    reconcile(run)
    refuse(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert run.status["exported"]["path"] == "/data/out"


def render_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform has every job rendered differently, as an upgrade of the operator may."""
    profile = {"h100-sxm": {"env": {"NCCL_DEBUG": "WARN"}}}
    platform = PlatformConfig.model_validate({"accelerators": profile, "image": "newer"})
    monkeypatch.setattr(whole_operator, "CONFIG", Config(platform, catalog.load()))


def until_export_failed(run: Run, *, expired: bool) -> Any:
    """Train, fail to export, and return the training job; None where it has `expired`."""
    if expired:
        run.edit(ttlSecondsAfterFinished=0)
    until_exporting(run)
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    assert (run.status["phase"], run.api.job() is None) == ("Failed", expired)
    return run.api.job()


OTHER_FOLDER = SPEC["export"] | {"huggingFace": {"path": "/data/other"}}


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("change", [{"export": OTHER_FOLDER}, {"recovery": {"maxRankRestarts": 1}}])
def test_a_failed_export_is_retried_without_training_after_the_platform_has_changed(
    run: Run, monkeypatch: pytest.MonkeyPatch, expired: bool, change: dict[str, Any]
) -> None:
    job = until_export_failed(run, expired=expired)
    plan = run.status["plan"]
    render_differently(monkeypatch)
    run.edit(**change)
    reconcile(run)
    assert (run.status["phase"], run.api.job(), run.status["plan"]) == ("Exporting", job, plan)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert (run.status["phase"], run.api.job()) == ("Succeeded", job)


@pytest.mark.parametrize("expired", [False, True])
def test_a_longer_training_is_done_after_the_platform_has_changed(
    run: Run, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    job = until_export_failed(run, expired=expired)
    render_differently(monkeypatch)
    run.edit(training={"trainIters": 9000})
    run.until(lambda: run.api.job() not in (None, job))
    assert run.condition("Exported") == {}


def test_an_export_is_added_without_training_after_the_platform_has_changed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.edit(export=None)
    train_to_the_end(run, "Succeeded")
    reconcile(run)
    job = run.api.job()
    render_differently(monkeypatch)
    run.edit(export=SPEC["export"])
    reconcile(run)
    assert (run.status["phase"], run.api.job()) == ("Exporting", job)


def test_a_run_that_an_earlier_release_trained_is_compared_by_its_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = until_export_failed(run, expired=False)
    del run.api.recipe["status"]["accepted"]["trainingHash"]
    run.edit(export=OTHER_FOLDER)
    reconcile(run)
    assert (run.status["phase"], run.api.job()) == ("Exporting", job)
    end(run, EXPORT, message=REFUSED)
    reconcile(run)
    del run.api.recipe["status"]["accepted"]["trainingHash"]
    render_differently(monkeypatch)
    run.edit(export=SPEC["export"])
    run.until(lambda: run.api.job() not in (None, job))

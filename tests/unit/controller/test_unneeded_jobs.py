"""Jobs that an edit makes unnecessary, or that no condition reports, do not run on."""

from collections.abc import Iterator
from typing import Any

import pytest
from megatron_operator.controller.api_resources import BATCH_JOBS

from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.converting import (
    EXPORT,
    IMPORT,
    RESULT,
    SPEC,
    converting_run,
    end,
    reconcile,
    until_exporting,
)
from tests.unit.controller.simulated_cluster import TOTAL
from tests.unit.controller.simulated_run import CLAIM, Run
from tests.unit.controller.test_data_checks import BLEND
from tests.unit.controller.test_edits_of_exports import BEST

MOCK = {"volume": {"claimName": CLAIM}, "mockData": True}
PREPARED = {
    "volume": {"claimName": CLAIM},
    "tokenizer": {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"},
    "sources": [{"path": "/data/a.jsonl", "format": "jsonl"}],
}
BEFORE = {"import": SPEC, "prepare": {"data": PREPARED}, "check": {"data": BLEND}}
"""Role of a Job -> spec with which it is the first one of a run."""
WITHOUT: dict[str, Any] = {"recipe": "llama3-8b", "image": "t", "init": None, "export": None, "data": MOCK}


@pytest.fixture
def plain() -> Iterator[Run]:
    """A run that has neither weights nor data to prepare yet."""
    run = Run()
    yield run
    run.operator.close()


@pytest.fixture
def run() -> Iterator[Run]:
    with converting_run() as run:
        yield run


@pytest.mark.parametrize("role", BEFORE)
def test_a_job_before_the_training_ends_when_an_edit_makes_it_unnecessary(plain: Run, role: str) -> None:
    plain.edit(**BEFORE[role])
    reconcile(plain)
    assert list(plain.api.batch_jobs) == [f"{NAME}-{role}"]
    plain.edit(**WITHOUT)
    plain.until(plain.trains)
    assert plain.api.batch_jobs == {}
    assert plain.condition("Imported") == {}
    assert plain.condition("Prepared")["status"] == "True"


def test_a_preparation_ends_when_an_edit_names_data_that_are_prepared(plain: Run) -> None:
    plain.edit(data=PREPARED)
    reconcile(plain)
    assert list(plain.api.batch_jobs) == [f"{NAME}-prepare"]
    plain.edit(data=BLEND)
    reconcile(plain)
    assert list(plain.api.batch_jobs) == [f"{NAME}-check"]


def test_an_unnecessary_job_ends_though_the_edit_waits_for_a_claim(run: Run) -> None:
    reconcile(run)
    run.edit(**WITHOUT)
    claim = run.api.claims.pop(CLAIM)
    reconcile(run)
    assert run.condition("Running")["reason"] == "VolumeClaimMissing"
    assert run.api.batch_jobs == {}
    run.api.claims[CLAIM] = claim
    run.until(run.trains)


def test_a_job_of_that_name_that_is_not_the_runs_stays(run: Run) -> None:
    reconcile(run)
    run.api.batch_jobs[IMPORT]["metadata"]["ownerReferences"] = []
    run.edit(**WITHOUT)
    run.until(run.trains)
    assert IMPORT in run.api.batch_jobs


def test_an_export_ends_when_it_is_removed_from_the_recipe(run: Run) -> None:
    until_exporting(run)
    run.edit(export=None)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    assert EXPORT not in run.api.batch_jobs
    assert IMPORT in run.api.batch_jobs, "what is complete stays for its logs"


def test_an_export_of_the_best_checkpoint_ends_when_it_is_removed_from_the_recipe(run: Run) -> None:
    training = {"trainIters": TOTAL, "evalInterval": 10}
    export = SPEC["export"] | {"when": ["best", "end"]}
    run.edit(export=export, training=training, checkpoint={"saveInterval": 10})
    until_exporting(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert BEST in run.api.batch_jobs
    run.edit(export=export | {"when": ["end"]})
    reconcile(run)
    assert BEST not in run.api.batch_jobs


def test_an_export_of_the_training_before_is_not_taken_for_one_that_is_added_later(run: Run) -> None:
    until_exporting(run)
    end(run, EXPORT, message=RESULT)
    reconcile(run)
    assert run.status["phase"] == "Succeeded"
    run.edit(export=None, env={"DEBUG": "1"})
    run.until(lambda: run.api.job() is not None and run.status["phase"] != "Succeeded")
    assert EXPORT not in run.api.batch_jobs


@pytest.mark.parametrize("role", BEFORE)
def test_a_job_that_no_condition_reports_ends_when_the_run_is_suspended(plain: Run, role: str) -> None:
    plain.edit(**BEFORE[role])
    plain.operator.die_after(1)
    plain.operator.reconcile()
    assert list(plain.api.batch_jobs) == [f"{NAME}-{role}"]
    assert plain.condition("Imported") == plain.condition("Prepared") == {}
    plain.operator.die_after(None)
    plain.edit(suspend=True)
    reconcile(plain)
    assert plain.api.batch_jobs == {}
    assert (plain.status["phase"], plain.condition("Running")["message"]) == ("Suspended", "no pod is left")


def test_the_export_of_a_run_that_is_to_train_on_ends_when_it_is_suspended(run: Run) -> None:
    until_exporting(run)
    run.edit(env={"DEBUG": "1"}, suspend=True)
    reconcile(run)
    assert run.status["phase"] == "Suspended"
    assert EXPORT not in run.api.batch_jobs


@pytest.mark.parametrize("suspend", [False, True])
def test_a_run_that_is_not_edited_does_not_list_its_jobs(
    run: Run, suspend: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.edit(suspend=suspend)
    reconcile(run)
    found = run.api.find

    async def find(resource: Any, *args: Any, **options: Any) -> Any:
        assert resource is not BATCH_JOBS
        return await found(resource, *args, **options)

    monkeypatch.setattr(run.api, "find", find)
    reconcile(run)
    assert run.status["phase"] == ("Suspended" if suspend else "Importing")

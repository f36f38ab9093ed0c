"""The checkpoint contract on a job, which whoever may edit the job may have edited."""

import json
from typing import Any

import pytest
from megatron_operator.lifecycle.desired import ANNOTATION_CONTRACT, contract_of
from megatron_operator.lifecycle.job_status import adopt_job

from tests.unit.lifecycle.reconciling import reconcile


def job(text: str) -> dict[str, Any]:
    return {"metadata": {"name": "run", "uid": "j", "annotations": {ANNOTATION_CONTRACT: text}}}


def test_the_contract_of_a_job_is_read() -> None:
    assert contract_of(job(json.dumps({"model.numLayers": "2"}))) == {"model.numLayers": "2"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 10_000, "[]", '{"a": 1}', '{"a": {"b": "c"}}', json.dumps({"a": "x" * 200_000})],
    ids=["empty", "torn", "nested", "list", "number", "object", "large"],
)
def test_a_contract_that_was_edited_is_not_read_and_does_not_replace_the_known_one(
    text: str, run: Any
) -> None:
    assert contract_of(job(text)) is None
    run.body["status"] = {"checkpoint": {"iteration": 40, "contract": {"model.numLayers": "2"}}}
    status = run.status()
    adopt_job(status, job(text))
    assert status.checkpoint.contract == {"model.numLayers": "2"}


def test_a_run_that_becomes_elastic_is_reshardable_from_a_checkpoint_of_its_new_job_on(run: Any) -> None:
    run.body["status"] = {"checkpoint": {"iteration": 40, "contract": {"optimizerReshardable": "false"}}}
    status = run.status()
    adopt_job(status, job(json.dumps({"optimizerReshardable": "true"})))
    run.body["status"] = status.wire()
    run.report(iteration=45, checkpointIteration=43, resumedFrom=43)
    assert reconcile(run).checkpoint.contract == {"optimizerReshardable": "fromNextCheckpoint"}, (
        "the pods of the previous job saved it when they were ended"
    )
    run.report(iteration=61, checkpointIteration=60, resumedFrom=43)
    assert reconcile(run).checkpoint.contract == {"optimizerReshardable": "true"}


def test_a_run_without_a_checkpoint_becomes_elastic_at_once(run: Any) -> None:
    run.body["status"] = {"checkpoint": {"contract": {"optimizerReshardable": "false"}}}
    status = run.status()
    adopt_job(status, job(json.dumps({"optimizerReshardable": "true"})))
    assert status.checkpoint.contract == {"optimizerReshardable": "true"}

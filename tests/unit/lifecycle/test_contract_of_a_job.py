"""The checkpoint contract on a job, which whoever may edit the job may have edited."""

import json
from typing import Any

import pytest
from megatron_operator.lifecycle.desired import ANNOTATION_CONTRACT, contract_of
from megatron_operator.lifecycle.job_status import adopt_job


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

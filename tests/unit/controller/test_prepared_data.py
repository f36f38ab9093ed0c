"""The data of a run are prepared or checked once, also when it shrinks and when the operator is upgraded."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from megatron_operator.manifests.data_digest import former_digests

from tests.unit.controller import whole_operator
from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.simulated_run import CLAIM, Run
from tests.unit.controller.whole_operator import WholeOperator

VOLUME = {"volume": {"claimName": CLAIM}}
TOKENIZER = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}
SOURCES = VOLUME | {"tokenizer": TOKENIZER, "sources": [{"path": "/data/raw/*.jsonl", "format": "jsonl"}]}
BLEND = VOLUME | {
    "tokenizer": {"tokenizerType": "NullTokenizer"},
    "blend": [{"path": "web_text_document"}],
}
UPGRADED = "registry.example/upgraded:9"


@pytest.fixture(params=["prepare", "check"])
def stage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(stage: str) -> Iterator[Run]:
    """An elastic run on two nodes, a new claim for its checkpoints and data that are ready."""
    run = Run()
    spec = {name: each for name, each in run.api.recipe["spec"].items() if name != "checkpoint"}
    run.api.recipe = run.api.recipe | {"spec": spec}
    data = SOURCES if stage == "prepare" else BLEND
    run.edit(data=data, recovery={"elastic": {"minCount": 8}})
    run.until(lambda: job_name(stage) in run.api.batch_jobs)
    complete(run, stage)
    run.until(run.trains)
    yield run
    run.operator.close()


def job_name(stage: str) -> str:
    return f"{NAME}-{stage}"


def complete(run: Run, stage: str) -> None:
    """The Job, and its pod, end."""
    message = json.dumps({"reason": "Completed", "message": "ready", "exitCode": 0})
    state = {"terminated": {"exitCode": 0, "message": message}}
    pod = {
        "metadata": {"name": f"{job_name(stage)}-x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"containerStatuses": [{"name": stage, "state": state}]},
    }
    run.api.batch_pods = [pod]
    condition = {"type": "Complete", "status": "True", "message": "a pod ended"}
    run.api.batch_jobs[job_name(stage)]["status"] = {"conditions": [condition]}


def shrink(run: Run) -> None:
    for name in list(run.cluster.nodes)[:2]:
        run.cluster.node_dies(name)


def upgrade(run: Run, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with another image follows one that recorded data in its own way."""
    job = run.api.batch_jobs[job_name(stage)]
    run.api.recipe["status"]["prepared"] = former_digests(job)[0 if stage == "prepare" else 1]
    before = whole_operator.CONFIG
    platform = before.platform.model_copy(update={"image": UPGRADED})
    monkeypatch.setattr(whole_operator, "CONFIG", replace(before, platform=platform))
    run.operator.close()
    run.operator = WholeOperator(run.api, lambda _seen, _decision: None, None, behind=False)


def follows_without_another_job(run: Run, stage: str, trains: Any) -> None:
    """The run trains again, and no Job is created for its data on the way."""
    job = run.api.batch_jobs[job_name(stage)]
    run.until(trains, 1500)
    assert run.api.batch_jobs[job_name(stage)] is job
    assert run.condition("Prepared")["status"] == "True"


def observed(run: Run) -> bool:
    return bool(run.status["observedGeneration"] == run.api.recipe["metadata"]["generation"])


def test_a_run_that_shrinks_to_one_node_continues_with_the_data_that_it_has(run: Run, stage: str) -> None:
    shrink(run)
    follows_without_another_job(run, stage, lambda: run.trains(1))


def test_a_run_with_another_image_continues_with_the_data_that_it_has(run: Run, stage: str) -> None:
    run.edit(image="registry.example/other:2")
    follows_without_another_job(run, stage, lambda: observed(run) and run.trains())


def test_a_run_that_shrinks_after_an_upgrade_continues_with_the_data_that_it_has(
    run: Run, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(run, stage, monkeypatch)
    former = run.status["prepared"]
    shrink(run)
    follows_without_another_job(run, stage, lambda: run.trains(1))
    assert run.status["prepared"] != former


def test_a_run_that_is_edited_after_an_upgrade_continues_with_the_data_that_it_has(
    run: Run, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(run, stage, monkeypatch)
    run.edit(env={"DEBUG": "1"})
    follows_without_another_job(run, stage, lambda: observed(run) and run.trains())


def test_arguments_that_another_release_renders_otherwise_prepare_nothing_again(
    run: Run, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = run.api.batch_jobs[job_name(stage)]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--of-then", *container["args"]]
    upgrade(run, stage, monkeypatch)
    shrink(run)
    follows_without_another_job(run, stage, lambda: run.trains(1))


def test_other_data_after_an_upgrade_are_prepared(
    run: Run, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(run, stage, monkeypatch)
    job = run.api.batch_jobs[job_name(stage)]
    changed: dict[str, Any] = {
        "prepare": {"sources": [{"path": "/data/other.jsonl", "format": "jsonl"}]},
        "check": {"blend": [{"path": "other_text_document"}]},
    }
    run.edit(data=run.api.recipe["spec"]["data"] | changed[stage])
    run.until(lambda: run.api.batch_jobs.get(job_name(stage), job) is not job)
    assert run.status["phase"] in ("Preparing", "Checking")

"""A recipe's status follows the preparation of its data, and its training is not mistaken for it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.controller.api_resources import WORKLOADS
from megatron_operator.lifecycle.progress_reading import ProgressReading

from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.simulated_run import CLAIM, Run

PREPARING = {"documents": 7, "bytesDone": 50, "bytesTotal": 200, "bytesPerSecond": 2.0, "secondsLeft": 75.0}


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    tokenizer = {"tokenizerType": "HuggingFaceTokenizer", "tokenizerModel": "/data/tokenizer"}
    sources = [{"path": "/data/a.jsonl", "format": "jsonl"}]
    run.edit(data={"volume": {"claimName": CLAIM}, "tokenizer": tokenizer, "sources": sources})
    run.operator.reconcile()
    yield run
    run.operator.close()


def answer(run: Run, body: dict[str, Any]) -> None:
    """What the pods answered last."""
    poller: Any = run.operator._progress
    poller._reading = ProgressReading(ProgressReport.parse({"schema": 1, "phase": "preparing"} | body), 0.0)


def test_the_status_has_the_progress_until_the_data_is_prepared(run: Run) -> None:
    run.operator.reconcile()
    assert "preparation" not in run.status
    answer(run, {"preparation": PREPARING})
    run.operator.reconcile()
    assert run.status["phase"] == "Preparing"
    assert (run.status["preparation"]["bytesDone"], run.status["preparation"]["bytesTotal"]) == (50, 200)
    job = run.api.batch_jobs[f"{NAME}-prepare"]
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    run.operator.reconcile()
    assert run.status.get("preparation") is None
    assert run.condition("Prepared")["status"] == "True"
    poller: Any = run.operator._progress
    assert poller._reading is None, "the answer of a pod that prepared is forgotten"


def test_a_complete_preparation_has_the_message_of_the_pod_with_the_result(run: Run) -> None:
    """Of pods that share the work, and of those that began again, one has it."""
    texts = {"failed": (138, None, "Input/output error"), "helper": (0, "1", "no shard is left to begin")}
    found = "1 sources are prepared: 7 documents; warning: no index of the samples"
    texts["first"] = (0, "0", found)
    run.api.batch_pods = [ended(name, *text) for name, text in texts.items()]
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    run.api.batch_jobs[f"{NAME}-prepare"]["status"] = complete
    run.operator.reconcile()
    prepared = run.condition("Prepared")
    assert (prepared["status"], prepared["reason"], prepared["message"]) == ("True", "Prepared", found)
    run.api.batch_pods = []
    run.until(run.trains)
    assert run.condition("Prepared")["message"] == found, "it outlives the pods"


def ended(name: str, code: int, index: str | None, text: str) -> dict[str, Any]:
    """A pod of the preparation that has ended; `index` is its own among several."""
    message = json.dumps({"reason": "", "message": text, "exitCode": code})
    state = {"terminated": {"exitCode": code, "message": message}}
    metadata: dict[str, Any] = {"name": f"{NAME}-prepare-{name}"}
    if index is not None:
        metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": index}
    status = {"containerStatuses": [{"name": "prepare", "state": state}]}
    return {"metadata": metadata, "spec": {}, "status": status}


def test_an_edit_starts_a_failed_preparation_again(run: Run) -> None:
    job = run.api.batch_jobs[f"{NAME}-prepare"]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "no text"}]}
    run.operator.reconcile()
    assert run.status["phase"] == "Failed"
    run.edit(scheduling={"nodeSelector": {"pool": "b"}})
    for _ in range(3):
        run.operator.reconcile()
    assert run.status["phase"] == "Preparing"
    assert "status" not in run.api.batch_jobs[f"{NAME}-prepare"], "created again"


def test_a_preparation_waits_in_the_queue_that_the_recipe_names(run: Run) -> None:
    def job() -> Any:
        return run.api.batch_jobs[f"{NAME}-prepare"]

    run.edit(scheduling={"queue": "a-typo"})
    job()["spec"]["suspend"] = True
    for queue in ("a-typo", "research"):
        run.edit(scheduling={"queue": queue})
        for _ in range(3):
            run.operator.reconcile()
        assert job()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue
        assert job()["spec"]["suspend"] is True
        assert run.status["phase"] == "Queued"
        prepared = run.condition("Prepared")
        assert (prepared["reason"], prepared["message"]) == (
            "Queued",
            f"waits for admission by queue {queue}",
        )
    assert [mark["category"] for mark in run.status["ledger"]["marks"]][-1] == "queue"
    job()["spec"]["suspend"] = False
    run.operator.reconcile()
    assert run.condition("Prepared")["reason"] == "Preparing"


def test_a_preparation_that_waits_gets_the_priority_that_the_recipe_names_and_kueues_reason(run: Run) -> None:
    def job() -> Any:
        return run.api.batch_jobs[f"{NAME}-prepare"]

    run.api.workload_priority_classes = {"low", "high"}
    refused = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    run.api.workloads = [{"spec": {}, "status": {"conditions": [refused]}}]
    for name in ("low", "high"):
        run.edit(scheduling={"queue": "research", "workloadPriorityClassName": name})
        for _ in range(3):
            run.operator.reconcile()
        # The Job was created without a queue, so that it runs, until the first edit.
        job()["spec"]["suspend"] = True
        for _ in range(3):
            run.operator.reconcile()
        assert job()["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == name
    assert run.condition("Prepared")["message"].endswith("by queue research: insufficient quota")
    job()["spec"]["suspend"] = False
    run.edit(scheduling={"queue": "research", "workloadPriorityClassName": "low"})
    for _ in range(3):
        run.operator.reconcile()
    assert job()["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high", "it runs, and goes on"


def test_kueues_reason_for_a_preparation_that_waits_is_read_less_often_the_longer_it_waits(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.edit(scheduling={"queue": "research"})
    for _ in range(3):
        run.operator.reconcile()
    run.api.batch_jobs[f"{NAME}-prepare"]["spec"]["suspend"] = True
    reads = 0
    find = run.api.find

    async def counted(resource: Any, *rest: Any, **named: Any) -> Any:
        nonlocal reads
        reads += resource is WORKLOADS
        return await find(resource, *rest, **named)

    monkeypatch.setattr(run.api, "find", counted)
    for _ in range(240):
        run.cluster.pass_time(5)
        run.operator.reconcile()
    assert 1 < reads < 15, f"read {reads} times in 20 minutes"


def test_a_preparation_that_checks_its_data_is_checking_while_its_pod_runs(run: Run) -> None:
    job = run.api.batch_jobs[f"{NAME}-prepare"]
    pod: Any = {"metadata": {"name": f"{NAME}-prepare-0"}, "spec": {}, "status": {}}
    run.api.batch_pods = [pod]
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.8"}
    answer(run, {"preparation": PREPARING})
    run.operator.reconcile()
    assert run.status["phase"] == "Preparing"
    answer(run, {"preparation": PREPARING | {"step": "check"}})
    run.operator.reconcile()
    assert run.status["phase"] == "Checking"
    prepared = run.condition("Prepared")
    assert (prepared["status"], prepared["reason"]) == ("False", "Checking")
    assert run.condition("Ready")["reason"] == "Checking"
    assert [mark["category"] for mark in run.status["ledger"]["marks"]][-1] == "prepare"
    pod["status"] = {"phase": "Failed"}
    run.operator.reconcile()
    assert run.status["phase"] == "Preparing", "the next pod begins with what is not complete"
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.9"}
    run.operator.reconcile()
    assert run.status["phase"] == "Checking"
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "too few samples"}]}
    run.operator.reconcile()
    assert run.status["phase"] == "Failed"

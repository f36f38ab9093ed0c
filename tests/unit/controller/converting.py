"""A run of the simulated cluster that imports and exports weights, and its steps."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.unit.controller.api_in_memory import NAME
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


@contextmanager
def converting_run() -> Iterator[Run]:
    """A fine-tuning of Megatron-Bridge that imports a model and exports it again."""
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

"""A run as the API server holds it, made up in memory."""

import itertools
from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.controller.progress_poller import Reading
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.snapshot import Scene
from megatron_operator.lifecycle.status_builder import Draft

NOW = 1_800_000_000.0


class Run:
    """Two pods of a PyTorchJob, and the recipe's status as it is carried from look to look."""

    def __init__(self) -> None:
        self.now = NOW
        self.numbers = itertools.count()
        self.body: dict[str, Any] = {
            "metadata": {
                "name": "run",
                "namespace": "default",
                "uid": "u",
                "generation": 1,
                "resourceVersion": "1",
            },
            "spec": {},
        }
        self.job: dict[str, Any] = {
            "metadata": {"name": "run", "namespace": "default", "uid": "j"},
            "spec": {
                "runPolicy": {},
                "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}},
            },
        }
        self.pods = [self.pod("master"), self.pod("worker")]
        self.reading: Reading | None = None
        self.ends: dict[str, PodEnd] = {}
        self.events: list[dict[str, Any]] = []

    def pod(self, kind: str, phase: str = "Running", born: float | None = None) -> dict[str, Any]:
        born = self.now if born is None else born
        return {
            "metadata": {
                "name": f"run-{kind}-0",
                "uid": f"uid-{next(self.numbers)}",
                "creationTimestamp": timestamp(born),
                "labels": {
                    "training.kubeflow.org/replica-type": kind,
                    "training.kubeflow.org/replica-index": "0",
                    "training.kubeflow.org/job-name": "run",
                },
            },
            "status": {"phase": phase, "podIP": "10.0.0.1", "startTime": timestamp(born)},
        }

    def replace_worker(self, phase: str = "Running") -> None:
        self.pods[1] = self.pod("worker", phase)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def say(self, **report: Any) -> None:
        defaults = {"phase": "training", "generation": 1, "trainIters": 200, "stepSeconds": 1.0}
        self.now += 1
        self.reading = Reading({"schema": 1, **defaults, **report}, self.now)

    def draft(self) -> Draft:
        return Draft.of(self.body, self.now)

    def scene(self) -> Scene:
        return Scene(self.job, self.pods, self.reading, self.ends, self.events)

    def keep(self, draft: Draft) -> Draft:
        """Write the status, as the API server would keep it."""
        self.body["status"] = draft.status.wire()
        return draft


@pytest.fixture
def run() -> Run:
    return Run()

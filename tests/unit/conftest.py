"""A run as the API server holds it, built in memory, and an API server within the process."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from megatron_contract.progress import ProgressReport
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.progress_reading import ProgressReading
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.lifecycle.status_builder import StatusBuilder

from testkit.api_stand_in import ApiStandIn

NOW = 1_800_000_000.0


class Run:
    """Two pods of a PyTorchJob, and the recipe's status from one reconcile to the next."""

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
                "pytorchReplicaSpecs": {
                    kind: {
                        "replicas": 1,
                        "template": {"spec": {"containers": [{"name": "pytorch", "image": "trainer:1"}]}},
                    }
                    for kind in ("Master", "Worker")
                },
            },
        }
        self.pods = [self.pod("master"), self.pod("worker")]
        self.reading: ProgressReading | None = None
        self.ends: dict[str, PodEnd] = {}
        self.events: list[dict[str, Any]] = []

    def pod(self, kind: str, phase: str = "Running", created: float | None = None) -> dict[str, Any]:
        """A pod of the gang, new in every call."""
        created = self.now if created is None else created
        return {
            "metadata": {
                "name": f"run-{kind}-0",
                "uid": f"uid-{next(self.numbers)}",
                "creationTimestamp": timestamp(created),
                "labels": {
                    "training.kubeflow.org/replica-type": kind,
                    "training.kubeflow.org/replica-index": "0",
                    "training.kubeflow.org/job-name": "run",
                },
            },
            "status": {"phase": phase, "podIP": "10.0.0.1", "startTime": timestamp(created)},
        }

    def replace_worker(self, phase: str = "Running") -> None:
        """Replace the worker as the training-operator does."""
        self.pods[1] = self.pod("worker", phase)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds

    def report(self, **fields: Any) -> None:
        """Let the pods report progress, with fields as on the wire."""
        defaults = {"phase": "training", "generation": 1, "trainIters": 200, "stepSeconds": 1.0}
        self.now += 1
        report = ProgressReport.parse({"schema": 1, **defaults, **fields})
        self.reading = ProgressReading(report, self.now)

    def status(self) -> StatusBuilder:
        """The status as a reconcile starts with it."""
        # A copy: `changed` compares with what was read, also after a write.
        return StatusBuilder.of(dict(self.body), self.now)

    def snapshot(self) -> RunSnapshot:
        """The run as a reconcile reads it."""
        return RunSnapshot(
            self.now,
            self.job,
            tuple(self.pods),
            reading=self.reading,
            ends=self.ends,
            events=tuple(self.events),
        )

    def write(self, status: StatusBuilder) -> StatusBuilder:
        """Write the status to the API server."""
        self.body["status"] = status.wire()
        return status


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    """An API server over HTTP, on a thread of its own."""
    with ApiStandIn().running() as server:
        yield server


@pytest.fixture
def kubeconfig(api: ApiStandIn, tmp_path: Path) -> Path:
    """A kubeconfig of the API server."""
    path = tmp_path / "kubeconfig"
    api.write_kubeconfig(path)
    return path


def logging_settings() -> dict[str, tuple[object, ...]]:
    """What decides whether this project's records are logged: by the name of each logger, and "" for all.

    Loggers of libraries are their own: uvicorn sets the levels of its when a server is made.
    """
    root = logging.root
    loggers = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return {
        "": (root.manager.disable, root.level, *root.handlers),
        **{
            each.name: (each.level, each.propagate, each.disabled)
            for each in loggers
            if each.name.startswith("megatron_")
        },
    }


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """Fail a test that leaves logging changed: the next of its process would find no warning in `caplog`."""
    before = logging_settings()
    yield
    after = logging_settings()
    # Loggers are also created by tests, by what these import.
    assert {name: after[name] for name in before} == before


@pytest.fixture(autouse=True)
def output_of_any_width(unchanged_logging: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Lines are not broken for a terminal, whose width xdist's workers have in $COLUMNS."""
    monkeypatch.delenv("COLUMNS", raising=False)

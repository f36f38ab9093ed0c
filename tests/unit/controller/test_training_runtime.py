"""What precedes a TrainJob: its runtime as it should be, and no JobSet of an earlier job."""

import asyncio
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.api.reasons import Reason
from megatron_operator.controller import training_runtime
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBSETS, TRAINING_JOBS, TRAINING_RUNTIMES, Resource
from megatron_operator.controller.training_runtime import create_train_job, ensure_runtime
from megatron_operator.lifecycle.status_builder import StatusBuilder

OWN: dict[str, Any] = {
    "labels": {LABEL_RECIPE: "run"},
    "ownerReferences": [{"apiVersion": API_VERSION, "kind": KIND, "name": "run", "uid": "u"}],
}
TRAINJOBS = TRAINING_JOBS["TrainJob"]
NOT_SEEN = (
    'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: '
    "Invalid value: specified trainingRuntime must be created before the TrainJob is created"
)


class Api:
    """Holds at most one object of each resource, and notes what is written."""

    def __init__(self, found: dict[Resource, dict[str, Any]] | None = None, refusals: int = 0) -> None:
        self.found = found or {}
        self.refusals = refusals
        self.written: list[tuple[str, dict[str, Any]]] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("default", "run")
        return self.found.get(resource)

    async def create(self, resource: Resource, body: dict[str, Any]) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise ApiError(403, "Forbidden", NOT_SEEN)
        if resource in self.found:
            raise ApiError(409, "AlreadyExists", "exists")
        self.written.append(("create", body))
        return body

    async def replace(self, resource: Resource, body: dict[str, Any]) -> Any:
        assert resource is TRAINING_RUNTIMES
        self.written.append(("replace", body))
        return body


def runtime(hash_of_content: str = "new", **metadata: Any) -> dict[str, Any]:
    annotations = {"megatron.training/hash": hash_of_content}
    known = {"name": "run", "namespace": "default", "annotations": annotations}
    return {"kind": "TrainingRuntime", "metadata": known | OWN | metadata, "spec": {"of": hash_of_content}}


def ensured(api: Any) -> Any:
    metadata = {"name": "run", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}
    status = StatusBuilder.of({"metadata": metadata, "spec": {}}, 0.0)
    return asyncio.run(ensure_runtime(api, status, runtime()))


def test_a_runtime_that_is_missing_is_created() -> None:
    api = Api()
    assert ensured(api) is None
    assert api.written == [("create", runtime())]


def test_a_runtime_that_is_as_it_should_be_costs_no_write() -> None:
    """Also after the operator died between this write and that of the TrainJob."""
    api = Api({TRAINING_RUNTIMES: runtime(resourceVersion="7")})
    assert ensured(api) is None
    assert api.written == []


def test_the_runtime_of_an_earlier_job_is_replaced_and_keeps_trainers_finalizer() -> None:
    theirs = {"uid": "r", "resourceVersion": "7", "finalizers": ["trainer.kubeflow.org/resource-in-use"]}
    api = Api({TRAINING_RUNTIMES: runtime("old", **theirs)})
    assert ensured(api) is None
    assert api.written == [("replace", runtime(**theirs))]


@pytest.mark.parametrize(
    ("existing", "reason"),
    [
        (runtime(labels={}, ownerReferences=[]), Reason.NAME_TAKEN),
        (runtime(deletionTimestamp="2026-01-01T00:00:00Z"), Reason.PREVIOUS_JOB_ENDING),
    ],
)
def test_a_runtime_that_cannot_be_used_is_waited_for(existing: dict[str, Any], reason: Reason) -> None:
    api = Api({TRAINING_RUNTIMES: existing})
    assert ensured(api).reason is reason
    assert api.written == []


def test_no_runtime_is_made_beside_a_trainjob_of_somebody_else() -> None:
    foreign = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "metadata": {"name": "run"}}
    api = Api({TRAINJOBS: foreign, JOBSETS: {"metadata": {"name": "run"}}})
    obstacle = ensured(api)
    assert obstacle.reason is Reason.NAME_TAKEN
    assert obstacle.message.startswith("TrainJob run exists and is not this recipe's")
    assert api.written == []


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (OWN | {"ownerReferences": [{"kind": "TrainJob", "name": "run"}]}, Reason.PREVIOUS_JOB_ENDING),
        (OWN, Reason.PREVIOUS_JOB_ENDING),
        ({"ownerReferences": [{"kind": "TrainJob", "name": "run"}]}, Reason.NAME_TAKEN),
        ({}, Reason.NAME_TAKEN),
    ],
)
def test_no_job_is_prepared_beside_a_jobset_of_its_name(metadata: dict[str, Any], reason: Reason) -> None:
    api = Api({JOBSETS: {"metadata": {"name": "run", "namespace": "default"} | metadata}})
    assert ensured(api).reason is reason
    assert api.written == []


def test_a_trainjob_is_created_once_trainer_has_seen_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_runtime, "PAUSES", (0.0, 0.0))
    body = {"kind": "TrainJob", "metadata": {"name": "run", "namespace": "default"}}
    api: Any = Api(refusals=2)
    assert asyncio.run(create_train_job(api, TRAINJOBS, body)) == body
    api = Api(refusals=3)
    with pytest.raises(ApiError, match="must be created before"):
        asyncio.run(create_train_job(api, TRAINJOBS, body))


def test_another_refusal_of_a_trainjob_is_not_repeated() -> None:
    api: Any = Api({TRAINJOBS: {}})
    with pytest.raises(ApiError) as raised:
        asyncio.run(create_train_job(api, TRAINJOBS, {"metadata": {}}))
    assert raised.value.conflict

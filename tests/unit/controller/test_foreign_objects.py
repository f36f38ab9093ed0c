"""Objects that are not the recipe's own are neither changed nor deleted, whatever their name."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import JOBS
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import whole_operator
from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID
from tests.unit.controller.simulated_run import CLAIM, Run

CHECKPOINTS, DATA, PREPARE = f"{NAME}-checkpoints", f"{NAME}-data", f"{NAME}-prepare"
LABELS = {LABEL_RECIPE: NAME}
OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": NAME, "uid": UID}
PREPARED = {
    "data": {
        "volume": {"size": "1Gi"},
        "prepare": {"source": "/text", "include": "*.txt"},
    }
}


@pytest.fixture
def run() -> Iterator[Run]:
    """A recipe that needs two claims and a preparation; nothing of it exists yet."""
    run = Run()
    volume = {"size": "1Ti", "accessMode": "ReadWriteMany"}
    run.edit(checkpoint={"volume": volume}, **PREPARED)
    yield run
    run.operator.close()


def named(name: str, **metadata: Any) -> dict[str, Any]:
    """An object of this name, made by somebody else unless `metadata` has other facts."""
    identity = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}", "resourceVersion": "7"}
    return {"metadata": identity | metadata, "spec": {"accessModes": ["ReadWriteMany"]}}


def after(run: Run, reconciles: int = 5) -> dict[str, Any]:
    """The condition Running after so many reconciles."""
    for _ in range(reconciles):
        run.cluster.pass_time(5)
        run.operator.reconcile()
    return dict(run.condition("Running"))


@pytest.mark.parametrize("name", [CHECKPOINTS, DATA])
@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {"app": "web"}},
        {"ownerReferences": [OWNER]},
        {"labels": LABELS, "ownerReferences": [{"kind": "StatefulSet", "name": "db", "uid": "other"}]},
    ],
    ids=["bare", "other labels", "our owner without our label", "our label, another owner"],
)
def test_a_claim_of_somebody_else_is_reported_and_left_alone(
    run: Run, name: str, metadata: dict[str, Any]
) -> None:
    foreign = named(name, **metadata)
    run.api.claims[name] = deepcopy(foreign)
    condition = after(run)
    assert condition["reason"] == "NameTaken"
    field = "checkpoint" if name == CHECKPOINTS else "data"
    assert condition["message"] == (
        f"PersistentVolumeClaim {name} exists and is not this recipe's; "
        f"set spec.{field}.volume.claimName: {name} to use it, delete it, or rename the recipe"
    )
    assert run.api.claims[name] == foreign
    assert run.cluster.job is None
    del run.api.claims[name]
    after(run)
    assert run.api.claims[name]["metadata"]["labels"][LABEL_RECIPE] == NAME, "the recipe continues"


def test_a_batch_job_of_somebody_else_is_reported_and_left_alone(run: Run) -> None:
    foreign = named(PREPARE)
    run.api.batch_jobs[PREPARE] = deepcopy(foreign)
    condition = after(run)
    assert condition["reason"] == "NameTaken"
    message = f"Job {PREPARE} exists and is not this recipe's; delete it, or rename the recipe"
    assert condition["message"] == message
    assert run.api.batch_jobs[PREPARE] == foreign
    assert run.cluster.job is None


def test_a_claim_that_an_earlier_version_created_is_adopted_and_changed(run: Run) -> None:
    """Earlier versions created objects by server-side apply, with the same label and owner."""
    run.api.claims[DATA] = named(DATA, labels=LABELS, ownerReferences=[OWNER])
    run.api.claims[CHECKPOINTS] = named(CHECKPOINTS, labels=LABELS)
    after(run)
    assert run.condition("Prepared")["reason"] == "Preparing"
    data, checkpoints = run.api.claims[DATA], run.api.claims[CHECKPOINTS]
    assert data["metadata"]["uid"] == f"uid-of-{DATA}", "not created again"
    assert data["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert [owner["uid"] for owner in data["metadata"]["ownerReferences"]] == [UID]
    assert "ownerReferences" not in checkpoints["metadata"], "the checkpoints are retained"


def test_a_retained_checkpoint_claim_gets_and_loses_its_owner_with_the_setting(run: Run) -> None:
    after(run, 1)
    volume = run.api.recipe["spec"]["checkpoint"]["volume"]
    run.edit(checkpoint={"volume": volume, "retainOnDelete": False})
    after(run, 1)
    assert [o["uid"] for o in run.api.claims[CHECKPOINTS]["metadata"]["ownerReferences"]] == [UID]
    run.edit(checkpoint={"volume": volume, "retainOnDelete": True})
    after(run, 1)
    assert "ownerReferences" not in run.api.claims[CHECKPOINTS]["metadata"]


@pytest.mark.parametrize("name", [CHECKPOINTS, DATA])
def test_a_claim_that_is_being_deleted_is_awaited(run: Run, name: str) -> None:
    after(run, 1)
    ending = deepcopy(run.api.claims[name])
    ending["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    run.api.claims[name] = ending
    run.api.batch_jobs.clear()
    condition = after(run)
    assert condition["reason"] == "VolumeClaimTerminating"
    assert not run.api.batch_jobs, "nothing that would mount it is created"
    del run.api.claims[name]
    after(run)
    assert name in run.api.claims
    assert run.api.batch_jobs


def test_a_claim_of_the_users_that_is_being_deleted_is_awaited() -> None:
    run = Run()
    run.api.claims[CLAIM] = named(CLAIM, deletionTimestamp="2027-01-15T08:00:00Z")
    assert after(run)["reason"] == "VolumeClaimTerminating"
    assert run.cluster.job is None
    del run.api.claims[CLAIM]
    assert after(run)["reason"] == "VolumeClaimMissing"
    run.api.claims[CLAIM] = named(CLAIM)
    run.until(run.trains)
    run.operator.close()


@pytest.mark.parametrize("name", [CHECKPOINTS, DATA])
def test_a_claim_that_appears_between_reading_and_creating_is_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    foreign, create = named(name), run.api.create

    async def somebody_is_faster(resource: Any, body: dict[str, Any]) -> Any:
        if body["metadata"].get("name") == name:
            run.api.claims[name] = deepcopy(foreign)
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", somebody_is_faster)
    assert after(run)["reason"] == "NameTaken"
    assert run.api.claims[name] == foreign


def test_a_job_that_appears_between_reading_and_creating_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    foreign = named(NAME) | {"spec": {"pytorchReplicaSpecs": {"Master": {}}}}
    create, taken = run.api.create, [False]

    async def somebody_is_faster(resource: Any, body: dict[str, Any]) -> Any:
        if resource is JOBS:
            taken[0] = True
            raise ApiError(409, "AlreadyExists", f"{NAME} already exists")
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", somebody_is_faster)
    monkeypatch.setattr(run.api, "job", lambda: deepcopy(foreign) if taken[0] else None)
    condition = after(run)
    assert condition["reason"] == "NameTaken"
    message = f"PyTorchJob {NAME} exists and is not this recipe's; delete it, or rename the recipe"
    assert condition["message"] == message
    run.edit(suspend=True)
    after(run)
    assert run.api.job() == foreign
    run.operator.close()


def test_objects_of_an_earlier_recipe_of_the_name_are_awaited(run: Run) -> None:
    earlier = OWNER | {"uid": "earlier-uid"}
    run.api.claims[DATA] = named(DATA, labels=LABELS, ownerReferences=[earlier])
    condition = after(run)
    assert condition["reason"] == "PreviousJobEnding"
    assert condition["message"] == f"PersistentVolumeClaim {DATA} of an earlier recipe is ending"
    del run.api.claims[DATA]
    run.api.batch_jobs[PREPARE] = named(PREPARE, labels=LABELS, ownerReferences=[earlier])
    assert after(run)["reason"] == "PreviousJobEnding"
    assert PREPARE in run.api.batch_jobs, "garbage collection deletes it"


def test_an_outdated_preparation_of_its_own_is_replaced(run: Run) -> None:
    after(run, 2)
    first = deepcopy(run.api.batch_jobs[PREPARE])
    run.edit(data=PREPARED["data"] | {"prepare": {"source": "/text", "include": "*.md"}})
    after(run)
    assert run.api.batch_jobs[PREPARE]["spec"] != first["spec"]


def test_a_name_taken_while_the_run_trains_leaves_the_run_alone() -> None:
    run = Run()
    run.until(run.trains)
    before = run.cluster.job
    run.api.claims[CHECKPOINTS] = named(CHECKPOINTS)
    run.edit(checkpoint={"volume": {"size": "1Ti", "accessMode": "ReadWriteMany"}})
    after(run)
    assert run.condition("Prepared")["reason"] == "NameTaken"
    assert run.trains()
    assert run.cluster.job is before
    run.operator.close()


@pytest.fixture
def on_jobsets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A recipe that needs neither claims nor a preparation, on a platform with JobSets."""
    platform = whole_operator.CONFIG.platform.model_copy(update={"job_backend": "jobset"})
    monkeypatch.setattr(whole_operator, "CONFIG", Config(platform, whole_operator.CONFIG.catalog))
    run = Run()
    yield run
    run.operator.close()


@pytest.mark.parametrize(
    ("labels", "reason"), [(LABELS, "PreviousJobEnding"), ({}, "NameTaken")], ids=["ours", "of somebody else"]
)
def test_the_jobset_of_a_trainjob_is_waited_for_by_a_run_that_moves_to_jobsets(
    on_jobsets: Run, labels: dict[str, str], reason: str
) -> None:
    """Trainer made it, and garbage collection deletes it after the TrainJob."""
    jobsets = on_jobsets.api.jobsets
    trainer = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": NAME, "uid": "t"}
    made = named(NAME, labels=labels, ownerReferences=[trainer])
    made |= {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    jobsets[NAME] = deepcopy(made)
    assert after(on_jobsets)["reason"] == reason
    assert jobsets[NAME] == made
    del jobsets[NAME]
    after(on_jobsets, 1)
    assert jobsets[NAME]["metadata"]["ownerReferences"][0]["kind"] == KIND

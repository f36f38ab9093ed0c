"""The first run of a name starts from the recipe that the watch delivered, whatever has happened since."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator.api.labels import API_VERSION, KIND, LABEL_RECIPE
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import CLAIMS, JOBS, SECRETS
from megatron_operator.lifecycle.desired import DesiredState
from megatron_operator.lifecycle.status_builder import StatusBuilder

from tests.unit.controller.api_in_memory import NAME, NAMESPACE, UID
from tests.unit.controller.simulated_run import Run
from tests.unit.controller.whole_operator import KEY, PlanningInProcess

CHECKPOINTS = f"{NAME}-checkpoints"
EARLIER = {"apiVersion": API_VERSION, "kind": KIND, "name": NAME, "uid": "earlier"}


@pytest.fixture
def run() -> Iterator[Run]:
    """A new recipe that the watch delivers, with a claim that outlives it."""
    run = new_run()
    yield run
    run.operator.close()


def new_run(planning: Any = None) -> Run:
    run = Run(planning)
    run.edit(checkpoint={"volume": {"size": "1Ti"}})
    run.api.recipe["metadata"]["generation"] = 1
    run.api.recipe["status"] = {"observedGeneration": -1}  # the default of the API server
    run.operator.caches.first_runs.listed([])
    return run


def recorded_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources that the operator reads from now on."""
    found: list[str] = []
    for name in ("get", "find"):
        method = getattr(run.api, name)

        def read(resource: Any, *rest: Any, _method: Callable[..., Any] = method, **named: Any) -> Any:
            found.append(resource.plural)
            return _method(resource, *rest, **named)

        monkeypatch.setattr(run.api, name, read)
    return found


def meanwhile(run: Run, change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `change` happen, once, when the claim exists and the job does not."""
    create, left = run.api.create, [change]

    async def changed(resource: Any, body: dict[str, Any]) -> Any:
        if resource is SECRETS and left:
            left.pop()()
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", changed)


def owners(run: Run) -> list[str]:
    """UIDs of the owners of the checkpoint claim."""
    return [each["uid"] for each in run.api.claims[CHECKPOINTS]["metadata"].get("ownerReferences") or []]


def left_job(run: Run, **metadata: Any) -> dict[str, Any]:
    """A job with the run's name."""
    identity = {"name": NAME, "namespace": NAMESPACE, "uid": "left", "resourceVersion": "7"}
    run.api._job = {"metadata": identity | metadata, "spec": {"pytorchReplicaSpecs": {"Master": {}}}}
    return deepcopy(run.api._job)


def test_a_new_recipe_starts_without_being_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = recorded_reads(run, monkeypatch)
    run.operator.reconcile()
    assert run.cluster.job is not None
    assert run.status["phase"] == "Starting"
    assert reads == []
    assert owners(run) == []
    run.until(run.trains)


def test_a_claim_that_another_recipe_left_is_used_although_a_quota_refuses_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server asks quotas before it finds that the claim exists."""
    before = new_run()
    before.until(before.trains)
    left = before.api.claims[CHECKPOINTS]
    before.operator.close()
    run = new_run()
    run.api.claims[CHECKPOINTS] = left
    create = run.api.create

    async def refuse(resource: Any, body: dict[str, Any]) -> Any:
        if resource is CLAIMS:
            raise ApiError(403, "Forbidden", "persistentvolumeclaims is forbidden: exceeded quota")
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", refuse)
    run.until(run.trains)
    run.operator.close()


def test_a_claim_that_a_quota_refuses_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_resource: Any, _body: dict[str, Any]) -> Any:
        raise ApiError(403, "Forbidden", "persistentvolumeclaims is forbidden: exceeded quota")

    monkeypatch.setattr(run.api, "create", refuse)
    run.operator.reconcile()
    assert run.condition("Running")["reason"] == "QuotaExceeded"
    assert run.cluster.job is None


@pytest.mark.parametrize("listed", [[KEY], None], ids=["had a run", "not listed"])
def test_a_recipe_whose_name_may_have_had_a_run_is_read(
    listed: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    if listed is not None:
        run.operator.caches.first_runs.listed(listed)
    reads = recorded_reads(run, monkeypatch)
    run.operator.reconcile()
    assert {"megatronrecipes", "pytorchjobs", "pods"} <= set(reads)
    run.operator.close()


def test_a_recipe_is_not_read_while_its_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(PlanningInProcess):
        waits = 2

        async def desired(self, status: StatusBuilder) -> DesiredState:
            self.waits -= 1
            return None if self.waits >= 0 else await super().desired(status)  # type: ignore[return-value]

    run = new_run(Slow())
    reads = recorded_reads(run, monkeypatch)
    for _ in range(3):
        assert run.cluster.job is None
        run.operator.reconcile()
    assert run.cluster.job is not None
    assert reads == []
    run.operator.close()


@pytest.mark.parametrize("writes", range(4), ids=["claim", "token", "job", "status"])
def test_an_operator_that_is_killed_during_a_start_is_followed_by_one_that_reads(writes: int) -> None:
    run = new_run()
    run.operator.die_after(writes)
    first = run.operator.caches
    run.until(run.trains)
    assert run.operator.caches is not first
    assert run.incidents == []
    assert owners(run) == []
    run.operator.close()


def test_a_recipe_that_was_edited_meanwhile_runs_as_edited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(run, lambda: run.edit_count(8), monkeypatch)
    run.operator.reconcile()
    assert run.condition("Running")["reason"] == "JobReplaced"
    run.until(lambda: run.trains(pods=1))
    assert run.status["observedGeneration"] == run.api.recipe["metadata"]["generation"]
    assert owners(run) == []


def test_a_recipe_that_was_suspended_meanwhile_is_suspended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(run, lambda: run.edit(suspend=True), monkeypatch)
    run.until(lambda: run.status.get("phase") == "Suspended")
    assert run.cluster.job is None
    assert run.cluster.pods == []


def deleted_meanwhile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete() -> None:
        run.api.recipe_deleted = True

    meanwhile(run, delete, monkeypatch)


def test_a_recipe_that_was_deleted_meanwhile_leaves_its_claim_alone_without_an_owner(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted_meanwhile(run, monkeypatch)
    run.operator.reconcile()
    made = [run.api.job(), *run.api.secrets.values()]
    found = [[o["uid"] for o in each["metadata"]["ownerReferences"]] for each in made if each is not None]
    assert found == [[UID]] * 2, "garbage collection deletes both"
    assert owners(run) == [], "its pods may have saved to it"


def test_a_claim_that_existed_before_a_recipe_stays_when_that_was_deleted_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retained from an earlier recipe of the name, and has that one's checkpoints."""
    labels = {LABEL_RECIPE: NAME}
    identity = {"name": CHECKPOINTS, "namespace": NAMESPACE, "uid": "kept", "resourceVersion": "7"}
    run.api.claims[CHECKPOINTS] = {"metadata": identity | {"labels": labels}, "spec": {}}
    deleted_meanwhile(run, monkeypatch)
    run.operator.reconcile()
    assert run.api.job() is not None
    assert owners(run) == []


def test_a_recipe_that_was_replaced_meanwhile_takes_over_the_claim_and_waits_for_the_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace() -> None:
        metadata = run.api.recipe["metadata"] | {"uid": "another", "generation": 1, "resourceVersion": "90"}
        run.api.recipe = {"metadata": metadata, "spec": run.api.recipe["spec"]}

    meanwhile(run, replace, monkeypatch)
    run.operator.reconcile()
    assert run.condition("Running")["reason"] == "PreviousJobEnding"
    assert owners(run) == []
    run.api._job = None  # garbage collection
    run.cluster.delete_job()
    run.until(run.trains)
    assert [o["uid"] for o in (run.api.job() or {})["metadata"]["ownerReferences"]] == ["another"]
    assert owners(run) == []


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "NameTaken"),
        ({"labels": {LABEL_RECIPE: NAME}, "ownerReferences": [EARLIER]}, "PreviousJobEnding"),
    ],
    ids=["of somebody else", "of an earlier recipe"],
)
def test_a_job_that_has_the_name_is_reported_and_left_alone(
    run: Run, metadata: dict[str, Any], reason: str
) -> None:
    left = left_job(run, **metadata)
    for _ in range(3):
        run.operator.reconcile()
        run.cluster.pass_time(1)
    assert run.condition("Running")["reason"] == reason
    assert run.api._job == left
    run.api._job = None
    run.until(run.trains)


def test_a_claim_of_somebody_else_is_reported_before_a_job_exists(run: Run) -> None:
    identity = {"name": CHECKPOINTS, "namespace": NAMESPACE, "uid": "theirs", "resourceVersion": "7"}
    run.api.claims[CHECKPOINTS] = {"metadata": identity, "spec": {}}
    theirs = deepcopy(run.api.claims[CHECKPOINTS])
    run.operator.reconcile()
    assert run.condition("Running")["reason"] == "NameTaken"
    assert run.api.claims[CHECKPOINTS] == theirs
    assert run.cluster.job is None


@pytest.mark.parametrize("resource", [CLAIMS, SECRETS, JOBS], ids=lambda each: each.plural)
def test_a_start_that_the_api_server_interrupts_is_repeated(
    run: Run, resource: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, broken = run.api.create, [True]

    async def interrupted(of: Any, body: dict[str, Any]) -> Any:
        if of is resource and broken.pop():
            raise ApiError(500, "InternalError", "etcd has no leader")
        return await create(of, body)

    monkeypatch.setattr(run.api, "create", interrupted)
    with pytest.raises(ApiError, match="no leader"):
        run.operator.reconcile()
    broken.append(False)
    run.until(run.trains)
    assert owners(run) == []

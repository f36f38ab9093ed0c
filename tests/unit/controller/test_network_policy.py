"""The NetworkPolicy of a run is created before its job, and only the recipe's own is changed."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from megatron_operator import catalog
from megatron_operator.api.platform import PlatformConfig
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import BATCH_JOBS, JOBS, NETWORK_POLICIES, Resource
from megatron_operator.lifecycle.desired import Config

from tests.unit.controller import converting, whole_operator
from tests.unit.controller.api_in_memory import NAME
from tests.unit.controller.simulated_run import CLAIM, Run, lose_a_race_for_a_quota

POLICY = f"{NAME}-pods"
CHECKED = {"volume": {"claimName": CLAIM}, "datasetRoot": "chats"}


def config(**options: Any) -> Config:
    """A platform that wants NetworkPolicies, with these options."""
    platform = {
        "accelerators": {"h100-sxm": {}},
        "image": "trainer",
        "networkPolicies": {"enabled": True, **options},
    }
    return Config(PlatformConfig.model_validate(platform), catalog.load())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(whole_operator, "CONFIG", config())
    run = Run()
    yield run
    run.operator.close()


def test_the_policy_exists_before_the_job(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Resource] = []
    create = run.api.create

    async def record(resource: Resource, body: Any) -> Any:
        created.append(resource)
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", record)
    run.until(run.trains)
    assert created.index(NETWORK_POLICIES) < created.index(JOBS)


def test_the_policy_exists_before_each_job_that_the_run_waits_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[tuple[str, bool]] = []
    create = run.api.create

    async def record(resource: Resource, body: Any) -> Any:
        if resource is BATCH_JOBS:
            created.append((body["metadata"]["name"], POLICY in run.api.network_policies))
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", record)
    run.edit(**converting.SPEC | {"data": CHECKED})
    converting.reconcile(run)
    converting.end(run, converting.IMPORT, message=converting.RESULT)
    converting.reconcile(run)
    assert created == [(converting.IMPORT, True), (f"{NAME}-check", True)]


def test_no_job_of_a_run_is_created_while_its_policy_cannot_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {"metadata": {"name": POLICY, "uid": "theirs", "resourceVersion": "7"}, "spec": {}}
    run.api.network_policies[POLICY] = deepcopy(foreign)
    run.edit(**converting.SPEC)
    converting.reconcile(run)
    assert run.condition("Running")["reason"] == "NameTaken"
    del run.api.network_policies[POLICY]
    create, refusal = run.api.create, ApiError(403, "Forbidden", "networkpolicies is forbidden")

    async def refuse(resource: Resource, body: Any) -> Any:
        if resource is NETWORK_POLICIES:
            raise refusal
        return await create(resource, body)

    with monkeypatch.context() as patch:
        patch.setattr(run.api, "create", refuse)
        converting.reconcile(run)
        running = run.condition("Running")
        assert (running["reason"], running["message"]) == ("JobRefused", "networkpolicies is forbidden")
    assert not run.api.batch_jobs
    converting.reconcile(run)
    assert run.condition("Imported")["reason"] == "Importing"


@pytest.mark.parametrize("spec", [{}, converting.SPEC])
def test_a_run_whose_policy_the_operator_has_no_rights_for_names_what_to_do(
    run: Run, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option was set in the ConfigMap, and rights come with the chart."""
    create, get = run.api.create, run.api.get

    def check(resource: Resource, verb: str) -> None:
        if resource is NETWORK_POLICIES:
            message = f'networkpolicies is forbidden: User "me" cannot {verb} resource "networkpolicies"'
            raise ApiError(403, "Forbidden", message)

    async def refuse_create(resource: Resource, body: Any) -> Any:
        check(resource, "create")
        return await create(resource, body)

    async def refuse_get(resource: Resource, *args: Any) -> Any:
        check(resource, "get")
        return await get(resource, *args)

    run.edit(**spec)
    with monkeypatch.context() as patch:
        patch.setattr(run.api, "create", refuse_create)
        patch.setattr(run.api, "get", refuse_get)
        run.until(lambda: run.condition("Running").get("reason") == "JobRefused")
        assert run.condition("Running")["message"].endswith(
            'cannot get resource "networkpolicies"; run helm upgrade with '
            "platform.networkPolicies.enabled: true, which gives the operator this right"
        )
        assert not run.api.batch_jobs
        assert run.api.job() is None
    run.until(lambda: run.api.batch_jobs or run.api.job())


def test_the_policy_exists_before_the_job_though_counts_of_a_quota_changed_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_a_race_for_a_quota(run, NETWORK_POLICIES, monkeypatch)
    with pytest.raises(ApiError, match="resourcequotas"):
        run.operator.reconcile()
    assert run.api.job() is None
    run.until(run.trains)
    assert list(run.api.network_policies) == [POLICY]


def test_a_policy_of_somebody_else_is_reported_and_left_alone(run: Run) -> None:
    foreign = {"metadata": {"name": POLICY, "uid": "theirs", "resourceVersion": "7"}, "spec": {}}
    run.api.network_policies[POLICY] = deepcopy(foreign)
    run.until(lambda: run.condition("Running").get("reason") == "NameTaken")
    assert f"NetworkPolicy {POLICY} exists and is not this recipe's" in run.condition("Running")["message"]
    assert run.api.network_policies[POLICY] == foreign
    assert run.api.job() is None
    del run.api.network_policies[POLICY]
    run.until(run.trains)


def test_the_next_job_has_the_policy_of_the_platform_as_it_is_then(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.until(run.trains)
    before = deepcopy(run.api.network_policies[POLICY])
    monkeypatch.setattr(whole_operator, "CONFIG", config(metricsFrom=["monitoring"]))
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.api.network_policies[POLICY]["spec"] != before["spec"])
    peers = run.api.network_policies[POLICY]["spec"]["ingress"][1]["from"]
    assert [peer["namespaceSelector"]["matchExpressions"][0]["values"] for peer in peers][1] == ["monitoring"]


def test_the_next_job_has_the_policy_that_exists_while_a_quota_refuses_new_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server checks quotas before it finds that the policy exists."""
    run.until(run.trains)
    before, job, create = deepcopy(run.api.network_policies), run.api.job(), run.api.create

    async def refuse(resource: Resource, body: Any) -> Any:
        if resource is NETWORK_POLICIES:
            raise ApiError(403, "Forbidden", "networkpolicies is forbidden: exceeded quota")
        return await create(resource, body)

    monkeypatch.setattr(run.api, "create", refuse)
    run.edit(env={"NCCL_DEBUG": "INFO"})
    run.until(lambda: run.api.job() not in (None, job) and run.trains())
    assert run.api.network_policies == before

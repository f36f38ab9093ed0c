"""Policies of runs are created, changed and deleted as the platform wants, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import NetworkPolicies, PlatformConfig
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import NETWORK_POLICIES, RECIPES, Resource
from megatron_operator.controller.policy_reconciler import PolicyReconciler
from megatron_operator.manifests.metadata import Owner
from megatron_operator.manifests.network_policy import network_policy

ON = NetworkPolicies(enabled=True)
SCRAPED = NetworkPolicies(enabled=True, metrics_from=["monitoring"])


def made(recipe: str, namespace: str, options: NetworkPolicies = ON) -> Any:
    """The policy that the operator makes for a recipe."""
    return network_policy(Owner(recipe, namespace, f"uid-{recipe}"), options)


def recipe(name: str, namespace: str, phase: str | None = "Training") -> Any:
    """A recipe as the API server holds it."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return {"metadata": metadata, "status": {"phase": phase} if phase else None}


class ClusterInMemory:
    """The API client's methods for NetworkPolicies and recipes."""

    def __init__(self) -> None:
        foreign: Any = made("theirs", "b")
        foreign["metadata"].pop("ownerReferences")
        self.policies: list[Any] = [made("one", "a"), made("two", "b"), foreign]
        self.recipes = [recipe("one", "a"), recipe("two", "b"), recipe("theirs", "b")]
        self.lists = 0
        self.errors: dict[str, ApiError] = {}
        """Answers to requests for the policy of these recipes."""

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str | None = None
    ) -> AsyncIterator[list[Any]]:
        if resource is NETWORK_POLICIES:
            assert labels == LABEL_RECIPE
            self.lists += 1
        found = {NETWORK_POLICIES: self.policies, RECIPES: self.recipes}[resource]
        yield [each for each in found if namespace in (None, each["metadata"]["namespace"])]

    async def create(self, resource: Resource, body: Any) -> None:
        assert resource is NETWORK_POLICIES
        if (error := self.errors.get(body["metadata"]["labels"][LABEL_RECIPE])) is not None:
            raise error
        self.policies.append(body)

    async def merge(self, resource: Resource, target: Any, changes: Any) -> None:
        assert resource is NETWORK_POLICIES
        changed = {"metadata": target["metadata"] | changes["metadata"], "spec": changes["spec"]}
        self.policies[self.policies.index(target)] = target | changed

    async def delete(self, resource: Resource, target: Any) -> None:
        assert resource is NETWORK_POLICIES
        self.policies.remove(target)

    def names(self) -> list[str]:
        return [policy["metadata"]["name"] for policy in self.policies]


class ConfigInMemory:
    """The last valid platform file, where there was one, and whether the file is valid now."""

    def __init__(self) -> None:
        self.platform: PlatformConfig | None = PlatformConfig()
        self.valid = True
        self.revision = 1

    async def read(self) -> Any:
        if self.platform is None or not self.valid:
            raise InvalidRecipeError([FieldError("platform.yaml", "is broken", "correct it")])
        return SimpleNamespace(platform=self.platform)

    async def valid_platform(self) -> PlatformConfig | None:
        return self.platform

    def set(self, platform: PlatformConfig | None) -> None:
        self.platform = platform
        self.revision += 1


class World:
    def __init__(self, *namespaces: str) -> None:
        self.api, self.config = ClusterInMemory(), ConfigInMemory()
        api: Any = self.api
        config: Any = self.config
        self._reconciler = PolicyReconciler(api, config, namespaces)

    def check(self) -> list[str]:
        """Let the operator check the configuration; the policies that are left."""
        asyncio.run(self._reconciler.keep())
        return self.api.names()


def test_policies_of_runs_are_deleted_once_the_platform_wants_none() -> None:
    world = World()
    world.config.set(PlatformConfig(network_policies=ON))
    assert world.check() == ["one-pods", "two-pods", "theirs-pods"]
    world.config.set(PlatformConfig())
    assert world.check() == ["theirs-pods"], "one that no recipe owns is somebody's own"


def test_only_the_namespaces_that_the_release_serves_are_touched() -> None:
    assert World("a").check() == ["two-pods", "theirs-pods"]


@pytest.mark.parametrize("platform", [None, PlatformConfig(network_policies=ON)])
def test_policies_stay_while_they_are_wanted_or_no_file_was_valid(platform: PlatformConfig | None) -> None:
    world = World()
    world.config.set(platform)
    assert len(world.check()) == 3


def test_policies_follow_the_last_valid_file_while_the_file_is_invalid() -> None:
    """Also one that names a PriorityClass that does not exist, which keeps recipes from being planned."""
    world = World()
    world.config.set(PlatformConfig(network_policies=ON))
    world.config.valid = False
    world.api.policies.clear()
    assert world.check() == ["one-pods", "two-pods", "theirs-pods"]
    world.config.set(PlatformConfig())
    assert world.check() == []


def test_the_cluster_is_searched_once_for_each_change_of_the_configuration() -> None:
    world = World()
    for _ in range(3):
        world.check()
    assert world.api.lists == 1
    world.config.set(PlatformConfig())
    world.check()
    assert world.api.lists == 2


def test_runs_that_exist_get_policies_once_the_platform_wants_them() -> None:
    world = World()
    world.api.policies.clear()
    world.api.recipes = [recipe("one", "a"), recipe("new", "a", None), recipe("waits", "b", "Pending")]
    assert world.check() == []
    world.config.set(PlatformConfig(network_policies=ON))
    assert world.check() == ["one-pods", "new-pods", "waits-pods"]
    assert world.api.policies == [made("one", "a"), made("new", "a"), made("waits", "b")]


def test_recipes_without_pods_to_come_get_no_policy() -> None:
    world = World()
    world.api.policies.clear()
    phases = ("Refused", "Succeeded", "Failed")
    deleted = recipe("deleted", "a")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.recipes = [
        recipe("x" * 64, "a"),
        deleted,
        *(recipe(phase.lower(), "a", phase) for phase in phases),
    ]
    world.config.set(PlatformConfig(network_policies=ON))
    assert world.check() == []


def test_policies_of_recipes_follow_a_change_of_the_platform_and_those_of_others_do_not() -> None:
    world = World()
    theirs = world.api.policies[-1]
    world.config.set(PlatformConfig(network_policies=SCRAPED))
    world.check()
    assert world.api.policies == [made("one", "a", SCRAPED), made("two", "b", SCRAPED), theirs]


@pytest.mark.parametrize("status", [403, 404, 409])
def test_a_policy_that_cannot_be_created_keeps_no_other_run_from_its_own(status: int) -> None:
    world = World()
    world.api.policies.clear()
    world.api.errors["one"] = ApiError(status, "Refused", "the namespace is being terminated")
    world.config.set(PlatformConfig(network_policies=ON))
    assert world.check() == ["two-pods", "theirs-pods"]


def test_policies_are_completed_after_the_api_server_was_unavailable() -> None:
    world = World()
    world.api.policies.clear()
    world.api.errors["one"] = ApiError(503, "Unavailable", "etcd is starting")
    world.config.set(PlatformConfig(network_policies=ON))
    with pytest.raises(ApiError):
        world.check()
    world.api.errors.clear()
    assert world.check() == ["one-pods", "two-pods", "theirs-pods"]

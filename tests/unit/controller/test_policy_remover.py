"""Policies of runs are deleted when the platform wants none any more, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from megatron_operator.api.errors import FieldError, InvalidRecipeError
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import NetworkPolicies, PlatformConfig
from megatron_operator.controller.api_client import NETWORK_POLICIES, Resource
from megatron_operator.controller.policy_remover import PolicyRemover
from megatron_operator.manifests.metadata import Owner
from megatron_operator.manifests.network_policy import network_policy

ON = NetworkPolicies(enabled=True)


def made(recipe: str, namespace: str) -> Any:
    """The policy that the operator makes for a recipe."""
    return network_policy(Owner(recipe, namespace, f"uid-{recipe}"), ON)


class PoliciesInMemory:
    """The API client's methods for NetworkPolicies."""

    def __init__(self) -> None:
        foreign: Any = made("theirs", "b")
        foreign["metadata"].pop("ownerReferences")
        self.policies: list[Any] = [made("one", "a"), made("two", "b"), foreign]
        self.lists = 0

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str
    ) -> AsyncIterator[list[Any]]:
        assert (resource, labels) == (NETWORK_POLICIES, LABEL_RECIPE)
        self.lists += 1
        yield [each for each in self.policies if namespace in (None, each["metadata"]["namespace"])]

    async def delete(self, resource: Resource, target: Any) -> None:
        assert resource is NETWORK_POLICIES
        self.policies.remove(target)

    def names(self) -> list[str]:
        return [policy["metadata"]["name"] for policy in self.policies]


class ConfigInMemory:
    """The platform that is set; None for an invalid file."""

    def __init__(self) -> None:
        self.platform: PlatformConfig | None = PlatformConfig()
        self.revision = 1

    async def read(self) -> Any:
        if self.platform is None:
            raise InvalidRecipeError([FieldError("platform.yaml", "is broken", "correct it")])
        return SimpleNamespace(platform=self.platform)

    def set(self, platform: PlatformConfig | None) -> None:
        self.platform = platform
        self.revision += 1


class World:
    def __init__(self, *namespaces: str) -> None:
        self.api, self.config = PoliciesInMemory(), ConfigInMemory()
        api: Any = self.api
        config: Any = self.config
        self._remover = PolicyRemover(api, config, namespaces)

    def check(self) -> list[str]:
        """Let the operator check the configuration; the policies that are left."""
        asyncio.run(self._remover.remove_unwanted())
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
def test_policies_stay_while_they_are_wanted_or_the_file_is_invalid(platform: PlatformConfig | None) -> None:
    world = World()
    world.config.set(platform)
    assert len(world.check()) == 3


def test_the_cluster_is_searched_once_for_each_change_of_the_configuration() -> None:
    world = World()
    for _ in range(3):
        world.check()
    assert world.api.lists == 1
    world.config.set(PlatformConfig())
    world.check()
    assert world.api.lists == 2

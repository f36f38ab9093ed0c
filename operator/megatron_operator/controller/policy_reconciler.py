"""Creates, changes and deletes the NetworkPolicies of runs that exist when the platform changes."""

import asyncio
import logging
import time
from typing import Final

from megatron_operator.api.conditions import Phase
from megatron_operator.api.errors import InvalidRecipeError, described
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.api.platform import NetworkPolicies
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import NETWORK_POLICIES, RECIPES
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.lifecycle.children import policy_changes
from megatron_operator.lifecycle.object_metadata import Object, is_deleting, owned_by
from megatron_operator.lifecycle.ownership import belongs_to_recipe
from megatron_operator.manifests.metadata import Owner
from megatron_operator.manifests.network_policy import network_policy

log = logging.getLogger(__name__)

INTERVAL: Final = 5.0
"""Seconds between two checks of the configuration."""
AGAIN: Final = 600.0
"""Seconds until policies are compared again although the configuration has not changed.

A run that was being planned while the configuration changed may have missed the change.
"""
WITHOUT_PODS: Final = frozenset({Phase.REFUSED, Phase.SUCCEEDED, Phase.FAILED})
"""Phases of recipes that get no policy: their pods have ended, or there are none yet."""


class PolicyReconciler:
    """Applies `networkPolicies` of the platform to the runs that exist.

    The reconcile creates a run's policy before its pods, but with the configuration that the run was planned
    with: that may be the one before the change, and a run that trains is not planned again.
    """

    def __init__(self, api: ApiClient, config: ConfigSource, namespaces: tuple[str, ...]) -> None:
        """`namespaces`: those that the operator serves; empty for all."""
        self._api = api
        self._config = config
        self._namespaces = namespaces or (None,)
        self._kept: tuple[int, float] | None = None
        """Revision of the configuration that the policies were held to last, and when (monotonic)."""

    async def keep(self) -> None:
        """Hold all policies to the platform, once for each change of it. Raises ApiError.

        While the platform file is invalid, the last valid one holds; before there was one, they are left as
        they are.
        """
        platform = await self._config.valid_platform()
        if platform is None:
            return
        options = platform.network_policies
        revision, now = self._config.revision, time.monotonic()
        if self._kept is not None and self._kept[0] == revision and now - self._kept[1] < AGAIN:
            return
        for namespace in self._namespaces:
            if options.enabled:
                await self._create_and_change(namespace, options)
            else:
                await self._delete(namespace)
        self._kept = revision, now

    async def _create_and_change(self, namespace: str | None, options: NetworkPolicies) -> None:
        existing: dict[tuple[str, str], Object] = {}
        async for page in self._api.pages(NETWORK_POLICIES, namespace, labels=LABEL_RECIPE):
            existing |= {_key(policy): policy for policy in page}
        async for page in self._api.pages(RECIPES, namespace):
            for recipe in page:
                if (recipe.get("status") or {}).get("phase") in WITHOUT_PODS or is_deleting(recipe):
                    continue
                try:
                    wanted = _policy(recipe, options)
                except InvalidRecipeError:  # the reconcile refuses it
                    continue
                await self._ensure(wanted, existing.get(_key(wanted)), recipe["metadata"]["uid"])

    async def _ensure(self, wanted: Object, existing: Object | None, uid: str) -> None:
        """Create the policy, or change the recipe's own. Whose another one is, the reconcile reports."""
        try:
            if existing is None:
                await self._api.create(NETWORK_POLICIES, wanted)
            elif owned_by(existing, uid) and (changes := policy_changes(existing, wanted)) is not None:
                await self._api.merge(NETWORK_POLICIES, existing, changes)
        except ApiError as error:
            if error.conflict and existing is None:  # a reconcile created it meanwhile
                return
            if not (error.refused or error.not_found):
                raise
            log.warning("NetworkPolicy %s/%s: %s", *_key(wanted), error)

    async def _delete(self, namespace: str | None) -> None:
        async for page in self._api.pages(NETWORK_POLICIES, namespace, labels=LABEL_RECIPE):
            for policy in page:
                if belongs_to_recipe(policy) and not is_deleting(policy):
                    await self._api.delete(NETWORK_POLICIES, policy)
                    log.info("NetworkPolicy %s/%s deleted", *_key(policy))

    async def run(self) -> None:
        """Hold the policies to the platform for as long as the operator acts."""
        while True:
            try:
                await self.keep()
            except Exception as error:
                log.warning("cannot hold NetworkPolicies to the platform: %s", described(error))
            await asyncio.sleep(INTERVAL)


def _key(obj: Object) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _policy(recipe: Object, options: NetworkPolicies) -> Object:
    metadata = recipe["metadata"]
    policy = network_policy(Owner(metadata["name"], metadata["namespace"], metadata["uid"]), options)
    assert policy is not None, "called where the platform wants policies"
    return policy

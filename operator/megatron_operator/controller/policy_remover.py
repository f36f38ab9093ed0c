"""Deletes the NetworkPolicies of runs once the platform wants none any more."""

import asyncio
import logging
import time
from typing import Final

from megatron_operator.api.errors import InvalidRecipeError
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_client import NETWORK_POLICIES, ApiClient
from megatron_operator.controller.config_source import ConfigSource
from megatron_operator.lifecycle.object_metadata import is_deleting
from megatron_operator.lifecycle.ownership import belongs_to_recipe

log = logging.getLogger(__name__)

INTERVAL: Final = 5.0
"""Seconds between two checks of the configuration."""
AGAIN: Final = 600.0
"""Seconds until policies are looked for again although the configuration has not changed.

A job that was planned before the change may have created one after it.
"""


class PolicyRemover:
    """Holds the clusters' runs to `networkPolicies.enabled: false`."""

    def __init__(self, api: ApiClient, config: ConfigSource, namespaces: tuple[str, ...]) -> None:
        """`namespaces`: those that the operator serves; empty for all."""
        self._api = api
        self._config = config
        self._namespaces = namespaces
        self._removed: tuple[int, float] | None = None
        """Revision of the configuration for which policies were removed last, and when (monotonic)."""

    async def remove_unwanted(self) -> None:
        """Delete the policies of all recipes where the platform wants none. Raises ApiError.

        Keeps them while the platform file is invalid.
        """
        try:
            wanted = (await self._config.read()).platform.network_policies.enabled
        except InvalidRecipeError:
            return
        revision, now = self._config.revision, time.monotonic()
        if wanted:
            self._removed = None
            return
        if self._removed is not None and self._removed[0] == revision and now - self._removed[1] < AGAIN:
            return
        for namespace in self._namespaces or (None,):
            async for page in self._api.pages(NETWORK_POLICIES, namespace, labels=LABEL_RECIPE):
                for policy in page:
                    if belongs_to_recipe(policy) and not is_deleting(policy):
                        await self._api.delete(NETWORK_POLICIES, policy)
                        metadata = policy["metadata"]
                        log.info("NetworkPolicy %s/%s deleted", metadata["namespace"], metadata["name"])
        self._removed = revision, now

    async def run(self) -> None:
        """Remove unwanted policies for as long as the operator acts."""
        while True:
            try:
                await self.remove_unwanted()
            except Exception as error:
                log.warning("cannot remove NetworkPolicies: %s", error or repr(error))
            await asyncio.sleep(INTERVAL)

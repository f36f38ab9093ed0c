"""Claims that were created for a recipe that turns out to have been deleted before its run was reported."""

import logging
from typing import Final

from megatron_operator.api.times import seconds
from megatron_operator.controller.api_client import CLAIMS, ApiClient, ApiError
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey
from megatron_operator.manifests.metadata import Owner

log = logging.getLogger(__name__)

UNUSED: Final = 30.0
"""Seconds after its creation for which nothing can have been saved to a claim."""


class UnreportedClaims:
    """Gives claims that outlive their recipes an owner where the recipe was gone before they existed.

    A recipe that comes from the watch may have been deleted meanwhile. Garbage collection deletes what it
    owns, and a retained claim has no owner. The operator may not delete claims, so garbage collection is
    left to do that too. A process that ends in between leaves the claim.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._claims: dict[RecipeKey, list[tuple[Owner, Object]]] = {}

    def created(self, owner: Owner, claim: Object) -> None:
        """A claim was created for this recipe."""
        if not claim["metadata"].get("ownerReferences"):
            key = RecipeKey(owner.namespace, owner.name)
            self._claims.setdefault(key, []).append((owner, claim))

    def keep(self, key: RecipeKey) -> None:
        """The recipe exists: what was created for it is retained from now on."""
        self._claims.pop(key, None)

    async def discard(self, key: RecipeKey) -> None:
        """There is no recipe of this name: let what was created for it end with it.

        Raises ApiError, with a conflict where a claim has changed meanwhile; it is then to be called again.
        """
        for owner, claim in self._claims.get(key, []):
            try:
                await self._give_owner(owner, claim)
            except ApiError as error:
                if not (error.refused or error.not_found):
                    raise
                log.warning("%s: the claim %s is left: %s", key, claim["metadata"]["name"], error)
        self._claims.pop(key, None)

    async def _give_owner(self, owner: Owner, claim: Object) -> None:
        name = claim["metadata"]["name"]
        existing = await self._api.get(CLAIMS, owner.namespace, name)
        if existing is None or existing["metadata"]["uid"] != claim["metadata"]["uid"]:
            return
        if existing["metadata"].get("ownerReferences"):
            return
        if self._api.clock.now() - (seconds(existing["metadata"]["creationTimestamp"]) or 0.0) > UNUSED:
            log.warning("%s/%s is left: its recipe was deleted before it was reported", owner.namespace, name)
            return
        owners = owner.metadata(name)["ownerReferences"]
        await self._api.merge(CLAIMS, existing, {"metadata": {"ownerReferences": owners}})

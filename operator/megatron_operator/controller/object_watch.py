"""Delivers the objects of runs, of one resource: one list, then each change.

kopf delivers recipes and batch Jobs. Training jobs and pods change so often while runs start, and are so many
when the operator starts, that kopf's handling of their events would be most of its work
(docs/decisions/0032-own-watches-of-jobs-and-pods.md).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import aiohttp

from megatron_operator.api.errors import described
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_client import ApiClient, ApiError, WatchError
from megatron_operator.controller.object_cache import ObjectCache
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

log = logging.getLogger(__name__)

DURATION: Final = 600
"""Seconds of one watch request."""
FIRST_PAUSE: Final = 1.0
"""Seconds after a request that has brought nothing; each further pause is twice as long."""
LONGEST_PAUSE: Final = 5.0
"""Seconds: runs wait for their pods."""
LONGEST_PAUSE_OF_UNKNOWN: Final = 30.0
"""Seconds where the cluster does not know the kind."""
WITHOUT_TURN: Final = 20
"""Objects that are taken over before the event loop has a turn."""


class ObjectWatch:
    """The objects with the label of recipes in one namespace, or in all where it is None.

    `cache` has the resource, and what was delivered before. `deliver` gets each object, and whether it was
    deleted. `lost` gets the recipe of an object whose deletion was missed, as a later list shows.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str | None,
        cache: ObjectCache,
        deliver: Callable[[Object, bool], None],
        lost: Callable[[RecipeKey], None],
        lists: asyncio.Lock,
    ) -> None:
        """`lists` is held while a list is read, so that one page of all watches' lists is in memory."""
        self._api = api
        self._namespace = namespace
        self._cache = cache
        self._deliver = deliver
        self._lost = lost
        self._lists = lists
        self._version = ""
        self._pause = FIRST_PAUSE
        self._brought = False
        """Whether the last request has brought anything."""
        self._problem = ""
        """Why the last request ended, unless the API server ended it at its time."""
        self.listed = asyncio.Event()
        """Set once all objects have been delivered."""

    async def run(self) -> None:
        """Watch for as long as the operator acts."""
        while True:
            self._brought, longest = False, LONGEST_PAUSE
            try:
                if not self._version:
                    async with self._lists:
                        await self._list()
                await self._follow()
            except (OSError, aiohttp.ClientError) as error:
                # The next request continues from the last version.
                self._report(logging.INFO, described(error))
            except ApiError as error:
                if error.expired or isinstance(error, WatchError):
                    self._version = ""
                if error.not_found:
                    # It may be installed later; recipes report that it is missing.
                    longest = LONGEST_PAUSE_OF_UNKNOWN
                usual = error.expired or error.not_found
                self._report(logging.INFO if usual else logging.WARNING, str(error))
            except Exception as error:  # An event of another form; what it changed is in the next list.
                self._version = ""
                self._report(logging.WARNING, described(error))
            if not self._brought or not self._version:  # a list is expensive
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, longest)

    def _report(self, level: int, problem: str) -> None:
        """Log why a request ended, once while it is the same."""
        if problem != self._problem:
            log.log(level, "the watch of %s has ended: %s", self._cache.resource.plural, problem)
        self._problem = problem

    async def _list(self) -> None:
        """Deliver all objects, and report those that are gone. Raises what ApiClient raises."""
        before = {
            key: each
            for key, each in self._cache.identities()
            if self._namespace is None or key[0] == self._namespace
        }
        version, found = "", set[str]()
        pages = self._api.versioned_pages(self._cache.resource, self._namespace, labels=LABEL_RECIPE)
        async for first, page in pages:
            version = version or first
            for number, obj in enumerate(page):
                found.add(obj["metadata"]["uid"])
                self._take(obj, gone=False)
                if number % WITHOUT_TURN == 0:
                    await asyncio.sleep(0)
        for key, each in before.items():
            if each.uid in found:
                continue
            if (known := self._cache.known(*key)) is not None and known.uid == each.uid:
                self._cache.discard(*key)
            self._lost(each.recipe)
        self._version = version
        self.listed.set()

    async def _follow(self) -> None:
        """Deliver changes until the request ends. Raises what ApiClient raises."""
        events = self._api.watch(
            self._cache.resource, self._version, DURATION, namespace=self._namespace, labels=LABEL_RECIPE
        )
        number = 0
        async for event in events:
            obj = event["object"]
            if event["type"] != "BOOKMARK":
                self._take(obj, gone=event["type"] == "DELETED")
            self._version, self._problem = obj["metadata"]["resourceVersion"], ""
            self._brought, self._pause = True, FIRST_PAUSE
            number += 1
            if number % WITHOUT_TURN == 0:
                await asyncio.sleep(0)

    def _take(self, obj: Object, *, gone: bool) -> None:
        """Deliver an object. One that cannot be read, which anybody may have made, keeps no other back."""
        try:
            self._deliver(obj, gone)
        except Exception as error:
            plural, metadata = self._cache.resource.plural, obj["metadata"]
            name = f"{metadata.get('namespace')}/{metadata.get('name')}"
            log.error("%s %s cannot be read", plural, name, exc_info=error)

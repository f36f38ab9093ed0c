"""Keeps a part of each object of a cluster-wide collection: one list, then only what changes."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import aiohttp

from megatron_operator.api.errors import described
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import Resource
from megatron_operator.lifecycle.object_metadata import Object

log = logging.getLogger(__name__)

DURATION: Final = 300
"""Seconds of one watch request."""
PAUSE: Final = 5.0
"""Seconds between two watch requests."""
LONGEST_PAUSE: Final = 300.0
"""Seconds; the pause doubles with each refused request, because a list of a large collection is expensive."""
LONGEST_SILENCE: Final = 75.0
"""Seconds without an event for which the watch counts as up to date: a bookmark comes each minute."""

SPARE_PARTS: Final = 1000
"""Shared parts beyond twice the number of objects, from which they are forgotten: most are in no object."""


class CollectionWatch[Kept](ABC):
    """What is kept of the objects of one cluster-wide resource, by name."""

    OPTIONAL: ClassVar[bool] = False
    """Whether a cluster may stop serving the resource; `run` ends then, and may be called again."""

    def __init__(self, api: ApiClient, resource: Resource) -> None:
        self._api = api
        self._resource = resource
        self._kept: dict[str, Kept] | None = None
        """None before the first list."""
        self._version = ""
        self._heard = 0.0
        """Monotonic seconds of the last list or event."""
        self._selection = 0
        """Number of changes of which parts are to be kept."""
        self._listed_selection = 0
        """Its value when the last list began."""
        self._shared: dict[Any, Any] = {}
        """Parts that are equal in many objects, since the last list or since there were too many."""

    @abstractmethod
    def _keep(self, obj: Object) -> Kept:
        """What is kept of an object; equal where nothing that matters has changed."""

    @abstractmethod
    def _changed(self, before: Mapping[str, Kept | None]) -> None:
        """Objects changed: by name, what was kept of them before, None where there was no such object."""

    def listed(self) -> bool:
        """Whether all objects have been listed once."""
        return self._kept is not None

    def up_to_date(self) -> bool:
        """Whether no change can have been missed."""
        silent = time.monotonic() - self._heard >= LONGEST_SILENCE
        return self._kept is not None and bool(self._version) and not silent

    def list_again(self) -> None:
        """Read all objects again, at the next event or bookmark: other parts are to be kept."""
        self._selection += 1

    def _is_outdated(self) -> bool:
        """Whether other parts are to be kept than those of the last list."""
        return self._listed_selection != self._selection

    async def run(self) -> None:
        """Watch for as long as the operator acts, or until an optional resource is no longer served."""
        pause, plural = PAUSE, self._resource.plural
        while True:
            try:
                if not self._version or self._is_outdated():
                    await self.refresh()
                await self.follow()
                pause = PAUSE
            except (OSError, aiohttp.ClientError) as error:
                # The next request continues from the last version.
                log.info("the watch of %s has ended: %s", plural, described(error))
            except ApiError as error:
                if error.not_found and self.OPTIONAL:
                    log.info("%s are no longer served", plural)
                    self._version = ""
                    return
                if error.expired:
                    self._version = ""
                else:
                    log.warning("cannot watch %s: %s", plural, error)
                    pause = min(2 * pause, LONGEST_PAUSE)
            except Exception as error:  # An event of another form; what it changed is in the next list.
                self._version = ""
                log.warning("cannot watch %s: %s", plural, described(error))
                pause = min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def refresh(self) -> None:
        """Read all objects. Raises ApiError."""
        found: dict[str, Kept] = {}
        version, began, selection = "", time.monotonic(), self._selection
        self._shared = {}
        async for first, page in self._api.versioned_pages(self._resource, None):
            version = version or first
            for obj in page:
                found[obj["metadata"]["name"]] = self._keep(obj)
        before, self._kept, self._version, self._heard = self._kept or {}, found, version, began
        # A list that fails, or during which still other parts were asked for, is repeated.
        self._listed_selection = selection
        names = {name for name in before.keys() | found if before.get(name) != found.get(name)}
        self._changed({name: before.get(name) for name in names})

    async def follow(self) -> None:
        """Follow changes until the request ends. Raises ApiError, OSError, aiohttp.ClientError."""
        async for event in self._api.watch(self._resource, self._version, DURATION):
            self.handle(event)
            if self._is_outdated():
                return

    def handle(self, event: Object) -> None:
        """Take over a watch event."""
        obj, kept = event["object"], self._kept if self._kept is not None else {}
        self._version, name = obj["metadata"]["resourceVersion"], obj["metadata"].get("name")
        self._heard = time.monotonic()
        if event["type"] == "BOOKMARK":
            return
        before = kept.get(name)
        if event["type"] == "DELETED":
            kept.pop(name, None)
        else:
            kept[name] = self._keep(obj)
            if len(self._shared) > 2 * len(kept) + SPARE_PARTS:
                # Those in use are shared again by the next events.
                self._shared = {}
        if kept.get(name) != before:
            self._changed({name: before})

"""Reads the warnings about training jobs for all runs of a namespace together."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from megatron_operator.controller.api_client import EVENTS, ApiClient
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.job_backends import backend_of

RECENT: Final = 5.0
"""Seconds for which a list is used after it was read."""


@dataclass(slots=True)
class _List:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    events: list[Object] = field(default_factory=list)
    read_at: float = float("-inf")
    """When it was complete, in monotonic seconds."""

    def is_recent(self) -> bool:
        return time.monotonic() - self.read_at < RECENT


class JobEvents:
    """Lists Events by namespace and kind of job, each at most once at a time.

    For a list of one job's Events the API server goes through all of the namespace too, which takes seconds
    where hundreds of runs start; all of them share one.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lists: dict[tuple[str, str], _List] = {}

    async def of(self, job: Object) -> tuple[Object, ...]:
        """Warnings about a job or what it creates, at most RECENT seconds and a list old. Raises ApiError."""
        backend, namespace = backend_of(job), job["metadata"]["namespace"]
        lists = [await self._read(namespace, selector) for selector in backend.EVENT_SELECTORS]
        return tuple(event for found in lists for event in found if backend.is_event_of(job, event))

    async def _read(self, namespace: str, selector: str) -> list[Object]:
        found = self._lists.setdefault((namespace, selector), _List())
        if not found.is_recent():
            async with found.lock:
                if not found.is_recent():
                    found.events = await self._api.find(EVENTS, namespace, fields=selector)
                    found.read_at = time.monotonic()
                    self._drop_old()
        return found.events

    def _drop_old(self) -> None:
        """Keep no Events that nobody asks for any more."""
        self._lists = {key: x for key, x in self._lists.items() if x.is_recent() or x.lock.locked()}

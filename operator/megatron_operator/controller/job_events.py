"""Reads the warnings about training jobs for all runs of a namespace together."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from megatron_operator.controller.api_client import EVENTS, ApiClient
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.job_backends import backend_of

RECENT: Final = 5.0
"""Seconds for which a list is used after it was read."""


@dataclass(slots=True)
class _List:
    task: asyncio.Task[list[Object]]
    read_at: float | None = None
    """When it was complete, in monotonic seconds; None before."""

    def is_used(self, now: float) -> bool:
        """Whether it is being read, or was read a moment ago: not after an error."""
        return not self.task.done() if self.read_at is None else now - self.read_at < RECENT


class JobEvents:
    """Lists Events by namespace and kind of job, each at most once at a time.

    For a list of one job's Events the API server goes through all of the namespace too, which takes seconds
    where hundreds of runs start; all of them share one, and its error.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lists: dict[tuple[str, str], _List] = {}

    async def of(self, job: Object) -> tuple[Object, ...]:
        """Warnings about a job or what it creates, at most RECENT seconds and a list old.

        Raises one of EXPECTED_ERRORS.
        """
        backend, namespace = backend_of(job), job["metadata"]["namespace"]
        lists = [await self._read(namespace, selector) for selector in backend.EVENT_SELECTORS]
        return tuple(event for found in lists for event in found if backend.is_event_of(job, event))

    async def _read(self, namespace: str, selector: str) -> list[Object]:
        key, now = (namespace, selector), time.monotonic()
        self._lists = {key: each for key, each in self._lists.items() if each.is_used(now)}
        if key not in self._lists:
            task = asyncio.create_task(self._api.find(EVENTS, namespace, fields=selector), name="job-events")
            self._lists[key] = _List(task)
        found = self._lists[key]
        # Shielded: a reconcile that is cancelled does not cancel the list of the others.
        events = await asyncio.shield(found.task)
        found.read_at = found.read_at or time.monotonic()
        return events

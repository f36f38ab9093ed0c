"""Reads the warnings about training jobs for all runs of a namespace together."""

import asyncio
from typing import Final

from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import EVENTS
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.job_backends import backend_of

RECENT: Final = 5.0
"""Seconds for which a list is used after it was read."""


class JobEvents:
    """Lists Events by namespace and kind of job, each at most once at a time.

    For a list of one job's Events the API server goes through all of the namespace too, which takes seconds
    where hundreds of runs start; all of them share one, and its error.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._lists: dict[tuple[str, str], asyncio.Task[list[Object]]] = {}

    async def of(self, job: Object) -> tuple[Object, ...]:
        """Warnings about a job or what it creates, at most RECENT seconds and a list old.

        Raises one of EXPECTED_ERRORS.
        """
        backend, namespace = backend_of(job), job["metadata"]["namespace"]
        lists = [await self._read(namespace, selector) for selector in backend.EVENT_SELECTORS]
        return tuple(event for found in lists for event in found if backend.is_event_of(job, event))

    async def _read(self, namespace: str, selector: str) -> list[Object]:
        key = (namespace, selector)
        task = self._lists.get(key)
        if task is None:
            task = asyncio.create_task(self._api.find(EVENTS, namespace, fields=selector), name="job-events")
            self._lists[key] = task
            task.add_done_callback(lambda done: self._drop_later(key, done))
        # Shielded: a reconcile that is cancelled does not cancel the list of the others.
        return await asyncio.shield(task)

    def _drop_later(self, key: tuple[str, str], task: asyncio.Task[list[Object]]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._lists[key]
        else:
            asyncio.get_running_loop().call_later(RECENT, self._lists.pop, key)

"""Reads the warnings about jobs for all runs of a namespace together."""

import asyncio
import logging
from typing import Final

from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import EVENTS
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.manifests.job_backend import JOB_WARNINGS
from megatron_operator.manifests.job_backends import backend_of

log = logging.getLogger(__name__)

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
        """Warnings about a training job or what it creates, at most RECENT seconds and a list old.

        None where the API server refuses the list: they explain why pods are missing, and nothing depends on
        them. Raises the others of EXPECTED_ERRORS.
        """
        backend, namespace = backend_of(job), job["metadata"]["namespace"]
        lists = [await self._read(namespace, selector) for selector in backend.EVENT_SELECTORS]
        return tuple(event for found in lists for event in found if backend.is_event_of(job, event))

    async def of_batch_job(self, job: Object) -> tuple[Object, ...]:
        """Warnings about pods that a batch Job cannot create; otherwise as `of`."""
        uid, found = job["metadata"]["uid"], await self._read(job["metadata"]["namespace"], JOB_WARNINGS)
        return tuple(event for event in found if event["involvedObject"].get("uid") == uid)

    async def _read(self, namespace: str, selector: str) -> list[Object]:
        key = (namespace, selector)
        task = self._lists.get(key)
        if task is None:
            task = asyncio.create_task(self._api.find(EVENTS, namespace, fields=selector), name="job-events")
            self._lists[key] = task
            task.add_done_callback(lambda done: self._drop_later(key, done))
        try:
            # Shielded: a reconcile that is cancelled does not cancel the list of the others.
            return await asyncio.shield(task)
        except ApiError as error:
            log.warning("%s: cannot list the Events of jobs: %s", namespace, error)
            return []

    def _drop_later(self, key: tuple[str, str], task: asyncio.Task[list[Object]]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._lists[key]
        else:
            asyncio.get_running_loop().call_later(RECENT, self._lists.pop, key)

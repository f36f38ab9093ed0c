"""The watches of the training jobs and pods of all runs that are served."""

import asyncio
from collections.abc import Callable, Sequence

from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.object_cache import Caches, ObjectCache
from megatron_operator.controller.object_watch import ObjectWatch
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

Deliver = Callable[[Object, bool], None]
"""Gets an object, and whether it was deleted."""


class RunWatches:
    """One watch for each namespace and kind; pods are watched once that is asked for."""

    def __init__(
        self,
        api: ApiClient,
        namespaces: Sequence[str],
        caches: Caches,
        job_event: Deliver,
        pod_event: Deliver,
        lost: Callable[[RecipeKey], None],
    ) -> None:
        """`namespaces` is empty where all are served; `lost` is as for ObjectWatch."""
        lists = asyncio.Lock()

        def watches(cache: ObjectCache, deliver: Deliver) -> list[ObjectWatch]:
            return [
                ObjectWatch(api, namespace, cache, deliver, lost, lists)
                for namespace in namespaces or (None,)
            ]

        self._jobs = [each for cache in caches.jobs.values() for each in watches(cache, job_event)]
        self._pods = watches(caches.pods, pod_event)
        self._pods_begin = asyncio.Event()

    async def run(self) -> None:
        """Watch for as long as the operator acts."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._jobs:
                tasks.create_task(each.run())
            await self._pods_begin.wait()
            for each in self._pods:
                tasks.create_task(each.run())

    def begin_pods(self) -> None:
        """Watch pods from now on."""
        self._pods_begin.set()

    async def list_pods(self) -> None:
        """Watch pods from now on, and wait until all have been listed."""
        self.begin_pods()
        await asyncio.gather(*(each.listed.wait() for each in self._pods))

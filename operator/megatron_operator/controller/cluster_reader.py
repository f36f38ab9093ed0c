"""Keeps a list of the whole cluster: all nodes, and what all pods use of them."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.controller.api_client import ApiClient
from megatron_operator.controller.api_resources import NODES, PODS
from megatron_operator.controller.device_reader import DeviceReader
from megatron_operator.lifecycle.capacity import ClusterUsage

log = logging.getLogger(__name__)

FRESH: Final = 30.0
"""Seconds after which the cluster is read again. Until that is done, what is known is used: where the API
server is busy the lists of thousands of nodes take a minute, and reconciles that wait hold their workers."""
USABLE: Final = 4
"""After so many times FRESH nothing is known, and reconciles wait."""


class ClusterReader:
    """Reads the cluster for all runs, at most once at a time.

    What `read` returns is never changed.
    """

    def __init__(self, api: ApiClient, devices: DeviceReader | None = None) -> None:
        self._api = api
        self._devices = devices
        self._lock = asyncio.Lock()
        self._cluster = ClusterUsage()
        self._read_at = 0.0
        """When the last list was complete, in monotonic seconds."""
        self._begun = self._complete = 0
        """Number of the last list that was begun, and that was complete."""
        self._wanted = 1
        """Number of the first list that may be used."""
        self._absent: frozenset[str] = frozenset()
        """Names of nodes that were asked for, and that no list had."""
        self._background: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """From now on use no list that was begun before."""
        self._wanted = self._begun + 1

    async def read(self, names: Collection[str] = ()) -> ClusterUsage:
        """The cluster; read again where it lacks a node of these names that has not been found missing.

        Raises one of EXPECTED_ERRORS where it has to be read and cannot be.
        """
        if not self._usable(names):
            async with self._lock:
                if not self._usable(names):
                    await self._list()
                    self._absent |= self._cluster.missing(names)
        elif self._age() >= FRESH and (self._background is None or self._background.done()):
            self._background = asyncio.create_task(self._refresh(), name="cluster")
        return self._cluster

    def _age(self) -> float:
        return time.monotonic() - self._read_at

    def _usable(self, names: Collection[str]) -> bool:
        known = not self._cluster.missing(names) - self._absent
        return known and self._complete >= self._wanted and self._age() < USABLE * FRESH

    async def _refresh(self) -> None:
        try:
            async with self._lock:
                if self._age() >= FRESH:
                    await self._list()
        except Exception as error:
            log.warning("cannot list nodes and pods: %s", described(error))

    async def _list(self) -> None:
        self._begun += 1
        number, cluster = self._begun, ClusterUsage()
        backed = {} if self._devices is None else await self._devices.backed()
        async for nodes in self._api.pages(NODES, None):
            for node in nodes:
                cluster.add_node(node, backed.get(node["metadata"]["name"]))
        active = "status.phase!=Succeeded,status.phase!=Failed"
        async for pods in self._api.pages(PODS, None, fields=active):
            for pod in pods:
                cluster.add_pod(pod)
        self._cluster, self._read_at, self._complete = cluster, time.monotonic(), number
        self._absent = cluster.missing(self._absent)

"""What deleted runs have used, for the page of GPU hours: the operator's ConfigMaps, read now and then."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from megatron_operator.cli.deleted_runs import no_records
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import CONFIG_MAPS as RESOURCE
from megatron_operator.lifecycle.usage_records import CONFIG_MAPS, RecordError, Records
from megatron_operator.sdk.connection import AsyncConnection
from megatron_operator.sdk.errors import ClusterUnreachableError

REMEMBERED: Final = 20.0
"""Seconds for which what was read is shown again."""


class DeletedUse:
    """The records of one operator."""

    def __init__(
        self, connection: AsyncConnection, operator_namespace: str, namespaces: Sequence[str | None]
    ) -> None:
        """For a page with the runs of `namespaces`; (None,) for all."""
        self.namespaces = tuple(namespaces)
        self._connection = connection
        self._operator_namespace = operator_namespace
        self._known: list[Records] | str = "they have not been read yet"
        self._until = 0.0
        self._lock = asyncio.Lock()

    def shows(self, namespace: str) -> bool:
        """Whether the page has the runs of this namespace."""
        return None in self.namespaces or namespace in self.namespaces

    async def records(self) -> list[Records] | str:
        """Those of all ConfigMaps, or why they cannot be read; at most REMEMBERED seconds old."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._known = await self._read()
                self._until = time.monotonic() + REMEMBERED
            return self._known

    async def _read(self) -> list[Records] | str:
        try:
            async with self._connection.client() as api:
                read = [await api.get(RESOURCE, self._operator_namespace, name) for name in CONFIG_MAPS]
            found = [Records.read(each.get("data")) for each in read if each is not None]
            return found or no_records(self._operator_namespace)
        except ApiError as error:
            return error.message
        except (ClusterUnreachableError, RecordError) as error:
            return str(error)

"""Records what runs have used in ConfigMaps of the operator, so that it is counted once they are deleted."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from megatron_operator.api.errors import described
from megatron_operator.api.labels import FIELD_MANAGER, LABEL_MANAGED_BY
from megatron_operator.controller.api_client import ApiClient, ApiError
from megatron_operator.controller.api_resources import CONFIG_MAPS as RESOURCE
from megatron_operator.controller.api_resources import RECIPES
from megatron_operator.controller.cache_check import METADATA_ONLY
from megatron_operator.controller.deleted_run_metrics import DELETED_RUNS
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.settings import Settings
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.usage_records import (
    CONFIG_MAPS,
    RecordError,
    Records,
    RunUse,
    batches,
    config_map_of,
    run_use,
)

log = logging.getLogger(__name__)

INTERVAL: Final = 600.0
"""Seconds between two records of the runs that exist. A run that is deleted while no operator acts counts as
its last record has it."""
RETRY: Final = 30.0
"""Seconds after a failure."""
LAST_RECORDS: Final = 2.0
"""Seconds for the records when the operator is stopped."""
MAX_PENDING: Final = 10_000
"""Number of deleted runs that wait for their final record."""
MAX_COUNTED: Final = 10_000
"""Number of deleted runs that are remembered as counted."""


class UsageRecorder:
    """Writes the records of one leadership. No deletion waits for it: what fails is written later.

    What a deleted run has used is put into its record first, and only then into the sums. Each of the two
    writes can be repeated when it is not known whether it was carried out.
    """

    def __init__(self, api: ApiClient, caches: Caches, settings: Settings) -> None:
        self._api = api
        self._recipes = caches.recipes
        self._settings = settings
        self._deleted: dict[str, RunUse] = {}
        """By UID: deleted runs whose final record is not written yet."""
        self._uncounted: set[str] = set()
        """UIDs of deleted runs that have their final record: no more than the ConfigMaps have room for."""
        self._counted: dict[str, None] = {}
        """UIDs of deleted runs that are in the sums: the watch may deliver an end twice."""
        self._complete = asyncio.Event()
        self._wake = asyncio.Event()

    def caches_are_complete(self) -> None:
        """Begin: a run that the caches lack may have been deleted."""
        self._complete.set()

    def deleted(self, recipe: Object) -> None:
        """Count a run among the deleted ones of its namespace. `recipe` is its last state."""
        uid = recipe["metadata"]["uid"]
        use = run_use(recipe, self._api.clock.now())
        if use is not None and uid not in self._counted and uid not in self._uncounted:
            self._deleted[uid] = use
            self._wake.set()
            if len(self._deleted) > MAX_PENDING:
                oldest = self._deleted.pop(next(iter(self._deleted)))
                log.warning(
                    "usage of deleted run %s/%s is lost: %d others wait to be recorded",
                    oldest.namespace,
                    oldest.name,
                    MAX_PENDING,
                )

    async def run(self) -> None:
        """Record for as long as the operator acts."""
        await self._complete.wait()
        loop = asyncio.get_running_loop()
        due, checked = loop.time() + INTERVAL, False
        while True:
            try:
                self._wake.clear()
                if not checked:
                    await self.count_missed()
                    checked = True
                await self.count_deleted()
                if loop.time() >= due:
                    await self.record()
                    due, checked = loop.time() + INTERVAL, False
                if self._deleted or self._uncounted:
                    await asyncio.sleep(RETRY)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._wake.wait()
            except Exception as error:
                log.warning("cannot record usage, retrying in %g s: %s", RETRY, described(error))
                await asyncio.sleep(RETRY)

    async def stop(self) -> None:
        """Record once more; after `run` was cancelled. Gives up after LAST_RECORDS."""
        if not self._complete.is_set():
            return
        try:
            async with asyncio.timeout(LAST_RECORDS):
                await self.count_deleted()
                await self.record()
        except Exception as error:
            log.warning("cannot record usage before the operator stops: %s", described(error))

    async def record(self) -> None:
        """Record what the runs that exist have used up to now."""
        now, uses = self._api.clock.now(), dict[str, RunUse]()
        for (namespace, name), identity in self._recipes.identities():
            recipe = self._recipes.get(namespace, name)
            use = None if recipe is None else run_use(recipe, now)
            if use is not None and identity.uid not in self._counted:
                uses[identity.uid] = use
            await asyncio.sleep(0)
        for name, uids in _by_config_map(uses).items():
            await self._update(name, partial(Records.with_runs, uses={uid: uses[uid] for uid in uids}))

    async def count_deleted(self) -> None:
        """Count the runs whose deletion the watch has delivered."""
        await self._count(self._uncounted)
        # A ConfigMap that cannot be updated now has no room for more final records.
        failed = _by_config_map(self._uncounted).keys()
        for name, uids in _by_config_map(self._deleted).items():
            if name in failed:
                continue
            for ended in batches({uid: self._deleted[uid] for uid in uids if uid in self._deleted}):
                if not await self._update(name, partial(Records.with_ended, uses=ended)):
                    break
                self._uncounted.update(ended)
                for uid in ended:
                    self._deleted.pop(uid, None)
                await self._count(ended)
                if not self._uncounted.isdisjoint(ended):
                    break

    async def count_missed(self) -> None:
        """Count the runs that have a record and were deleted while no operator, or no watch, noticed."""
        missing: set[str] = set()
        for name in CONFIG_MAPS:
            records = await self._records(name)
            known = {identity.uid for _, identity in self._recipes.identities()}
            missing |= {
                uid
                for uid, use in records.runs.items()
                if uid not in known and self._settings.serves(use.namespace)
            }
        # Counted already: the record is left from a write that was repeated.
        for name, uids in _by_config_map(missing & self._counted.keys()).items():
            await self._update(name, partial(Records.without_runs, uids=uids))
        missing -= self._counted.keys()
        if missing:
            missing -= await self._existing()
            self._uncounted |= missing - self._deleted.keys()
            await self._count(self._uncounted)

    async def _count(self, uids: Iterable[str]) -> None:
        for name, chosen in _by_config_map(uids).items():
            if await self._update(name, partial(Records.with_deleted, uids=chosen)):
                self._uncounted.difference_update(chosen)
                self._counted |= dict.fromkeys(chosen)
        for uid in list(self._counted)[:-MAX_COUNTED]:
            del self._counted[uid]

    async def _existing(self) -> set[str]:
        """UIDs of all recipes that the API server has."""
        found = set()
        for namespace in self._settings.watch_namespaces or (None,):
            async for page in self._api.pages(RECIPES, namespace, accept=METADATA_ONLY):
                found |= {str(each["metadata"]["uid"]) for each in page}
        return found

    async def _records(self, name: str) -> Records:
        """Those of a ConfigMap; none where it does not exist or cannot be read as such."""
        try:
            found = await self._api.get(RESOURCE, self._settings.namespace, name)
            records = Records.read((found or {}).get("data"))
        except RecordError as error:
            log.warning("ConfigMap %s: %s; correct or remove this key", name, error)
            return Records()
        except ApiError as error:
            log.warning("cannot read ConfigMap %s: %s", name, described(error))
            return Records()
        DELETED_RUNS.update(name, records)
        return records

    async def _update(self, name: str, change: Callable[[Records], Records]) -> bool:
        """Change the records in a ConfigMap; False, and a warning, where it cannot be read or written."""
        try:
            return await self._try_update(name, change)
        except ApiError as error:
            log.warning("cannot record usage in ConfigMap %s, retrying later: %s", name, described(error))
            return False

    async def _try_update(self, name: str, change: Callable[[Records], Records]) -> bool:
        namespace = self._settings.namespace
        found = await self._api.get(RESOURCE, namespace, name)
        try:
            before = Records.read((found or {}).get("data"))
        except RecordError as error:
            log.warning("ConfigMap %s is not updated: %s; correct or remove this key", name, error)
            return False
        after = change(before)
        changes = before.changes(after)
        if found is None and changes:
            metadata = {"name": name, "namespace": namespace, "labels": {LABEL_MANAGED_BY: FIELD_MANAGER}}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": changes}
            await self._api.create(RESOURCE, body)
        elif found is not None and changes:
            await self._api.merge(RESOURCE, found, {"data": changes})
        DELETED_RUNS.update(name, after)
        return True


def _by_config_map(uids: Iterable[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for uid in uids:
        found.setdefault(config_map_of(uid), []).append(uid)
    return found

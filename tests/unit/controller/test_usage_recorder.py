"""Deleted runs are counted once, whatever fails or is killed in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.controller import usage_recorder
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import CONFIG_MAPS, RECIPES, Resource
from megatron_operator.controller.clock import ServerClock
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.settings import Settings
from megatron_operator.controller.usage_recorder import UsageRecorder
from megatron_operator.lifecycle import usage_records
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.usage_records import CONFIG_MAPS as NAMES
from megatron_operator.lifecycle.usage_records import NamespaceUse, Records, config_map_of
from prometheus_client import REGISTRY

NOW = 1_795_800_000.0
RUNS = [f"{number:x}" for number in range(6)]


def recipe(uid: str, *, hours: float = 2.0) -> Object:
    """A run that trains on eight accelerators."""
    metadata = {"namespace": "nlp", "name": f"run-{uid}", "uid": uid, "resourceVersion": "1"}
    began = timestamp(NOW - 3600 * hours)
    mark = {"time": began, "category": "train", "accelerators": 8}
    return {
        "metadata": metadata,
        "status": {"phase": "Training", "ledger": {"settledAt": began, "marks": [mark]}},
    }


class Lost(Exception):
    """No answer."""


class Api:
    """ConfigMaps and recipes. Write number `fails` is lost: before it is carried out, or its answer."""

    def __init__(self) -> None:
        self.clock = ServerClock(lambda: NOW)
        self.maps: dict[str, Object] = {}
        self.recipes: dict[str, Object] = {uid: recipe(uid) for uid in RUNS}
        self.writes = 0
        self.fails: int | None = None
        self.carried_out = False
        self.refused: str | None = None
        """Name of the ConfigMap whose writes are refused."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        assert (resource, namespace) == (CONFIG_MAPS, "megatron-system")
        found = self.maps.get(name)
        return None if found is None else found | {"data": dict(found["data"])}

    async def create(self, resource: Resource, body: Object) -> None:
        assert resource is CONFIG_MAPS
        name = body["metadata"]["name"]
        self._admit(name)
        with self._answered():
            if name in self.maps:
                raise ApiError(409, "AlreadyExists", name)
            metadata = body["metadata"] | {"resourceVersion": "1"}
            self.maps[name] = body | {"metadata": metadata}

    async def merge(self, resource: Resource, target: Object, changes: Object) -> None:
        assert resource is CONFIG_MAPS
        metadata = target["metadata"]
        self._admit(metadata["name"])
        with self._answered():
            known = self.maps[metadata["name"]]
            if known["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                raise ApiError(409, "Conflict", metadata["name"])
            data = {key: text for key, text in (known["data"] | changes["data"]).items() if text is not None}
            version = {"resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
            self.maps[metadata["name"]] = known | {"metadata": metadata | version, "data": data}

    async def pages(
        self, resource: Resource, namespace: str | None, *, accept: str
    ) -> AsyncIterator[list[Object]]:
        del namespace, accept
        assert resource is RECIPES
        yield list(self.recipes.values())

    def _admit(self, name: str) -> None:
        if name == self.refused:
            raise ApiError(422, "Invalid", f"{name} is immutable")

    def _answered(self) -> Any:
        return _Answer(self)

    def records(self) -> Records:
        """Those of all ConfigMaps."""
        runs, namespaces = {}, NamespaceUse()
        for name in self.maps:
            part = Records.read(self.maps[name]["data"])
            runs |= part.runs
            for use in part.namespaces.values():
                held = use.accelerator_seconds.get("train", 0.0)
                namespaces = NamespaceUse(
                    runs=namespaces.runs + use.runs,
                    accelerator_seconds={"train": namespaces.accelerator_seconds.get("train", 0.0) + held},
                )
        return Records(runs, {"nlp": namespaces})


class _Answer:
    def __init__(self, api: Api) -> None:
        self.api = api
        api.writes += 1
        self.lost = api.writes == api.fails

    def __enter__(self) -> None:
        if self.lost and not self.api.carried_out:
            raise Lost

    def __exit__(self, kind: object, *_: object) -> None:
        if self.lost and kind is None:
            raise Lost


def started(api: Api, *, settings: Settings | None = None) -> UsageRecorder:
    """The recorder of an operator that has listed the recipes that exist."""
    caches = Caches()
    for each in api.recipes.values():
        caches.recipes.put(each)
    return UsageRecorder(api, caches, settings or Settings())  # type: ignore[arg-type]


def delete(api: Api, recorder: UsageRecorder, *uids: str) -> None:
    """The recipes are deleted, and the watch of this operator delivers it."""
    for uid in uids:
        body = api.recipes.pop(uid)
        recorder._recipes.remove(body)
        recorder.deleted(body)


def counted(api: Api) -> tuple[int, float]:
    """Number of deleted runs and their accelerator hours."""
    use = api.records().namespaces["nlp"]
    return use.runs, sum(use.accelerator_seconds.values()) / 3600


def test_a_deleted_run_counts_up_to_its_deletion_and_has_no_record_any_more() -> None:
    api = Api()
    recorder = started(api)
    delete(api, recorder, *RUNS[:3])
    asyncio.run(recorder.count_deleted())
    assert counted(api) == (3, 48.0)
    assert not api.records().runs


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("fails", range(1, 13))
@pytest.mark.parametrize("killed", [False, True])
def test_it_counts_once_whichever_write_is_lost_and_whoever_repeats_it(
    fails: int, carried_out: bool, killed: bool
) -> None:
    """`killed`: the next operator goes on, which knows the deletions only from the records."""
    api = Api()
    recorder = started(api)
    asyncio.run(recorder.record())
    assert set(api.records().runs) == set(RUNS)
    delete(api, recorder, *RUNS)
    api.writes, api.fails, api.carried_out = 0, fails, carried_out
    try:
        asyncio.run(recorder.count_deleted())
    except Lost:
        if killed:
            recorder = started(api)
            asyncio.run(recorder.count_missed())
        asyncio.run(recorder.count_deleted())
    assert counted(api) == (6, 96.0)
    assert not api.records().runs


def test_a_run_that_was_deleted_while_no_operator_acted_counts_as_recorded_last() -> None:
    api = Api()
    asyncio.run(started(api).record())
    api.recipes.pop(RUNS[0])
    for _ in range(2):
        recorder = started(api)
        asyncio.run(recorder.count_missed())
        asyncio.run(recorder.record())
    assert counted(api) == (1, 16.0)
    assert set(api.records().runs) == set(RUNS[1:])


def test_a_run_that_only_the_cache_lacks_is_not_counted() -> None:
    api = Api()
    recorder = started(api)
    asyncio.run(recorder.record())
    recorder._recipes.remove(api.recipes[RUNS[0]])
    asyncio.run(recorder.count_missed())
    assert counted(api) == (0, 0.0)


def test_a_run_of_a_namespace_that_is_not_served_is_left_alone() -> None:
    api = Api()
    asyncio.run(started(api).record())
    api.recipes.clear()
    asyncio.run(started(api, settings=Settings(watch_namespaces=("other",))).count_missed())
    assert counted(api) == (0, 0.0)
    assert len(api.records().runs) == len(RUNS)


def test_a_deletion_that_the_watch_delivers_twice_counts_once() -> None:
    api = Api()
    recorder = started(api)
    body = api.recipes[RUNS[0]]
    delete(api, recorder, RUNS[0])
    asyncio.run(recorder.count_deleted())
    recorder.deleted(body)
    asyncio.run(recorder.count_deleted())
    assert counted(api) == (1, 16.0)


def test_an_unchanged_record_costs_no_write() -> None:
    api = Api()
    recorder = started(api)
    asyncio.run(recorder.record())
    before = api.writes
    asyncio.run(recorder.record())
    assert api.writes == before


def test_a_config_map_that_cannot_be_read_is_not_overwritten_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    recorder = started(api)
    broken = config_map_of(RUNS[0])
    api.maps[broken] = {"metadata": {"name": broken, "resourceVersion": "1"}, "data": {"namespace.x": "?"}}
    others = [uid for uid in RUNS if config_map_of(uid) != broken]
    delete(api, recorder, *RUNS)
    asyncio.run(recorder.count_deleted())
    assert "namespace.x" in caplog.text
    assert api.maps[broken]["data"] == {"namespace.x": "?"}
    api.maps[broken]["data"] = {}
    assert counted(api)[0] == len(others)
    asyncio.run(recorder.count_deleted())
    assert counted(api)[0] == len(RUNS)


def test_a_config_map_whose_writes_are_refused_holds_up_no_other_and_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_recorder, "RETRY", 0.0)
    monkeypatch.setattr(usage_recorder, "INTERVAL", 0.0)
    api = Api()
    refused = config_map_of(RUNS[0])
    api.refused = refused
    others = {uid for uid in RUNS[:3] if config_map_of(uid) != refused}
    exist = {uid for uid in RUNS[3:] if config_map_of(uid) != refused}
    assert others
    assert exist

    async def live() -> None:
        recorder = started(api)
        recorder.caches_are_complete()
        delete(api, recorder, *RUNS[:3])
        task = asyncio.create_task(recorder.run())
        async with asyncio.timeout(10):
            while counted(api)[0] < len(others) or set(api.records().runs) != exist:
                await asyncio.sleep(0)
            api.refused = None
            while counted(api)[0] < 3 or set(api.records().runs) != set(RUNS[3:]):
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(live())
    assert f"{refused} is immutable" in caplog.text


def test_of_too_many_pending_deletions_the_oldest_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_recorder, "MAX_PENDING", 2)
    api = Api()
    recorder = started(api)
    delete(api, recorder, *RUNS[:3])
    assert list(recorder._deleted) == RUNS[1:3]
    assert f"nlp/run-{RUNS[0]}" in caplog.text


def test_a_leftover_record_of_a_counted_run_is_dropped_and_not_added() -> None:
    api = Api()
    recorder = started(api)
    asyncio.run(recorder.record())
    leftover = {name: dict(each["data"]) for name, each in api.maps.items()}
    delete(api, recorder, RUNS[0])
    asyncio.run(recorder.count_deleted())
    key = f"run.{RUNS[0]}"
    name = config_map_of(RUNS[0])
    api.maps[name]["data"][key] = leftover[name][key]
    asyncio.run(recorder.count_missed())
    assert counted(api) == (1, 16.0)
    assert set(api.records().runs) == set(RUNS[1:])


def test_many_deletions_at_once_are_recorded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_records, "MAX_ENDED_BYTES", 600)
    api = Api()
    api.recipes = {f"{number:x}": recipe(f"{number:x}") for number in range(100)}
    recorder = started(api)
    delete(api, recorder, *list(api.recipes))
    asyncio.run(recorder.count_deleted())
    assert counted(api) == (100, 1600.0)
    assert api.writes > 2 * 16


def test_the_operator_that_stops_records_the_last_state() -> None:
    api = Api()

    async def live() -> None:
        recorder = started(api)
        recorder.caches_are_complete()
        task = asyncio.create_task(recorder.run())
        while not recorder._complete.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        delete(api, recorder, RUNS[0])
        await recorder.stop()

    asyncio.run(live())
    assert counted(api) == (1, 16.0)
    assert set(api.records().runs) == set(RUNS[1:])


def test_after_a_failure_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_recorder, "RETRY", 0.0)
    api = Api()
    api.fails = 1

    async def live() -> None:
        recorder = started(api)
        recorder.caches_are_complete()
        task = asyncio.create_task(recorder.run())
        delete(api, recorder, *RUNS)
        async with asyncio.timeout(10):
            while counted(api)[0] < len(RUNS) or api.records().runs:
                await asyncio.sleep(0)
        assert not task.done()
        task.cancel()

    asyncio.run(live())
    assert counted(api) == (6, 96.0)
    assert "cannot record usage, retrying in 0 s: Lost" in caplog.text


def test_the_metrics_have_this_week_of_deleted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_operator.controller.deleted_run_metrics.time.time", lambda: NOW)
    api = Api()
    recorder = started(api)
    labels = {"namespace": "nlp"}

    def value(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(f"megatron_deleted_runs_week_{name}", labels | more)

    asyncio.run(recorder.count_missed())
    assert value("accelerator_seconds", use="useful") is None
    delete(api, recorder, *RUNS[:2])
    asyncio.run(recorder.count_deleted())
    assert value("accelerator_seconds", use="useful") == 2 * 16 * 3600
    assert value("accelerator_seconds", use="lost") == 0.0
    assert value("cost") is None
    assert len(NAMES) == 16

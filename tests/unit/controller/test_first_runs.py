"""Pods are listed before a job is created, except where no earlier run of the name can have left any."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from megatron_operator.controller import cache_check, first_runs
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.cache_check import CacheCheck
from megatron_operator.controller.first_runs import FirstRuns
from megatron_operator.controller.object_cache import Caches
from megatron_operator.lifecycle.status_builder import RecipeKey

from tests.unit.controller.simulated_run import Run
from tests.unit.controller.whole_operator import KEY

OTHER, LEFT = RecipeKey("default", "other"), RecipeKey("default", "left")


class Lists:
    """An API server that has the job of the recipe `run`, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def pages(self, resource: Any, *_: object, **__: object) -> AsyncIterator[list[Any]]:
        if self.error is not None:
            raise self.error
        yield [object_of(KEY, "run")] if resource.plural == "pytorchjobs" else []


def object_of(key: RecipeKey, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": key.namespace, "uid": "a", "resourceVersion": "5"}
    return {"metadata": metadata | {"labels": {"megatron.training/recipe": key.name}}}


def started(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> FirstRuns:
    """What an operator knows after its first lists, though kopf has delivered nothing."""
    monkeypatch.setattr(cache_check, "FIRST_LISTS", 0.05)
    caches, api = Caches(), cast(Any, lists)

    async def pods_listed() -> None:
        caches.pods.put(object_of(LEFT, "left-master-0"))

    asyncio.run(CacheCheck(api, caches, (), lambda _key: None).first_lists(pods_listed))
    return caches.first_runs


@pytest.mark.parametrize("key", [KEY, LEFT], ids=["job", "pod"])
def test_a_name_of_which_an_object_was_left_had_a_run(
    key: RecipeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not started(Lists(), monkeypatch).is_first(key)


def test_a_new_name_has_its_first_run_until_its_job_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = started(Lists(), monkeypatch)
    assert runs.is_first(OTHER)
    runs.begin(OTHER)
    assert not runs.is_first(OTHER)


async def test_names_are_known_once_the_pods_are_listed_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_check, "FIRST_LISTS", 0.01)
    caches, api, listed = Caches(), cast(Any, Lists()), asyncio.Event()
    check = CacheCheck(api, caches, (), lambda _key: None)
    await check.first_lists(listed.wait)
    assert not caches.first_runs.is_first(OTHER)
    listed.set()
    async with asyncio.timeout(10):
        while not caches.first_runs.is_first(OTHER):
            await asyncio.sleep(0)
    assert not caches.first_runs.is_first(KEY)


def test_no_name_is_known_to_be_new_where_what_exists_could_not_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = Lists(ApiError(500, "InternalError", "etcd is down"))
    assert not started(lists, monkeypatch).is_first(OTHER)


def test_with_more_names_than_are_remembered_every_name_may_have_had_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_runs, "MOST", 2)
    runs = FirstRuns()
    runs.listed([KEY])
    runs.begin(OTHER)
    assert runs.is_first(RecipeKey("default", "new"))
    runs.begin(RecipeKey("default", "third"))
    assert not runs.is_first(RecipeKey("default", "new"))


@pytest.fixture
def run() -> Any:
    run = Run()
    yield run
    run.operator.close()


def lists_of_pods(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The selectors of all lists of pods from now on."""
    found: list[str] = []
    find: Callable[..., Any] = run.api.find

    def recorded(resource: Any, *rest: Any, **named: Any) -> Any:
        if resource.plural == "pods":
            found.append(named["labels"])
        return find(resource, *rest, **named)

    monkeypatch.setattr(run.api, "find", recorded)
    return found


def test_the_first_run_of_a_name_starts_without_a_list_of_pods(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.operator.caches.first_runs.listed([])
    lists = lists_of_pods(run, monkeypatch)
    run.operator.reconcile()
    assert run.cluster.job is not None
    assert lists == []
    run.until(run.trains)
    assert lists != []


def test_a_run_whose_name_had_another_waits_for_its_pods(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.operator.caches.first_runs.listed([])
    run.until(run.trains)
    metadata = run.api.recipe["metadata"] | {"uid": "another", "generation": 1}
    run.api.recipe = {"metadata": metadata, "spec": run.api.recipe["spec"]}
    run.api._job = None
    run.cluster.job = None
    assert run.cluster.pods
    lists = lists_of_pods(run, monkeypatch)
    run.operator.reconcile()
    assert lists != []
    assert run.cluster.job is None

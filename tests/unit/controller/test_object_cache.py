"""Caches hold what the watches delivered: the newest of each name, in whatever order it comes."""

import asyncio
import base64
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kopf import Body
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller import cache_check, object_cache
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.api_resources import PODS, RECIPES, Resource
from megatron_operator.controller.cache_check import CacheCheck
from megatron_operator.controller.object_cache import Caches, ObjectCache
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

RUN = RecipeKey("default", "run")


def pod(version: int, uid: str = "a", name: str = "run-worker-0") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {LABEL_RECIPE: "run"},
        },
        "status": {"phase": f"of version {version}"},
    }


def version(cache: ObjectCache) -> int | None:
    known = cache.known("default", "run-worker-0")
    return None if known is None else known.version


@pytest.fixture
def cache() -> ObjectCache:
    return Caches().pods


def test_an_older_version_that_arrives_late_is_ignored(cache: ObjectCache) -> None:
    cache.put(pod(10))
    cache.put(pod(9))
    assert version(cache) == 10


def test_versions_are_compared_as_numbers(cache: ObjectCache) -> None:
    cache.put(pod(9))
    cache.put(pod(10))
    assert version(cache) == 10


def test_a_pod_created_again_by_the_same_name_replaces_its_predecessor(cache: ObjectCache) -> None:
    cache.put(pod(5, "old"))
    cache.put(pod(8, "new"))
    assert [each["metadata"]["uid"] for each in cache.of_recipe(RUN) or []] == ["new"]


def test_the_late_end_of_a_predecessor_leaves_the_new_pod(cache: ObjectCache) -> None:
    cache.put(pod(8, "new"))
    cache.put(pod(6, "old"))
    cache.remove(pod(7, "old"))
    assert version(cache) == 8


def test_an_answer_to_a_write_does_not_bring_a_deleted_object_back(cache: ObjectCache) -> None:
    cache.put(pod(5))
    cache.remove(pod(6))
    cache.refresh(pod(5))
    assert cache.get("default", "run-worker-0") is None
    assert cache.of_recipe(RUN) == []


def test_an_answer_to_a_write_is_known_before_the_watch_delivers_it(cache: ObjectCache) -> None:
    cache.put(pod(5))
    cache.refresh(pod(6))
    assert version(cache) == 6


def test_a_reader_cannot_change_what_is_cached(cache: ObjectCache) -> None:
    cache.put(pod(5))
    [copy] = cache.of_recipe(RUN) or []
    copy["status"]["phase"] = "changed"
    found = cache.get("default", "run-worker-0")
    assert found is not None
    assert found["status"]["phase"] == "of version 5"


def pod_of_bytes(count: int, name: str = "run-worker-0", resource_version: int = 5) -> Object:
    """A pod with an annotation of about `count` bytes that cannot be compressed."""
    pod_with_annotation = pod(resource_version, name=name)
    text = base64.b85encode(random.Random(count).randbytes(count * 4 // 5)).decode()
    pod_with_annotation["metadata"]["annotations"] = {"note": text}
    return pod_with_annotation


def test_of_a_pod_with_large_annotations_only_the_identity_is_kept(cache: ObjectCache) -> None:
    cache.put(pod(4))
    cache.put(pod_of_bytes(2 * object_cache.OBJECT_BYTES))
    assert version(cache) == 5
    assert cache.get("default", "run-worker-0") is None
    assert cache.of_recipe(RUN) is None, "a run with such a pod is read"
    cache.put(pod(6))
    assert len(cache.of_recipe(RUN) or []) == 1


def test_many_pods_take_no_more_than_the_bound_of_all(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "CACHE_BYTES", 50_000)
    names = [f"foreign-{number}" for number in range(20)]
    for version_of_all in (5, 6):
        for name in names:
            cache.put(pod_of_bytes(10_000, name, version_of_all))
    kept = [name for name in names if cache.get("default", name) is not None]
    assert 1 <= len(kept) <= 6, "each takes more than 8,000 bytes"
    assert len(list(cache.identities())) == len(names)
    lost = next(name for name in names if name not in kept)
    for name in names:
        if name != lost:
            cache.remove(pod(6, name=name))
    cache.put(pod_of_bytes(10_000, resource_version=7))
    assert cache.get("default", "run-worker-0") is not None, "what was removed takes no room"
    cache.put(pod_of_bytes(10_000, lost, 6))
    assert cache.get("default", lost) is not None, "listed again, it has room now"


def test_an_object_of_kopf_keeps_all_but_the_fields_of_managers(cache: ObjectCache) -> None:
    body: Any = pod(5)
    managers = [{"manager": "kubelet", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}}]
    body["metadata"]["managedFields"] = managers
    cache.put(dict(Body(body)))
    found = cache.get("default", "run-worker-0")
    assert found is not None
    assert found["metadata"]["managedFields"] == [{"manager": "kubelet", "time": "2026-01-01T00:00:00Z"}]
    assert found["status"] == body["status"]


class Lists:
    """An API server that lists these objects; `after` is called once it has."""

    def __init__(self, *objects: Object, resource: Resource = PODS) -> None:
        self.objects = list(objects)
        self.resource = resource
        self.after: Any = None

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str | None = None, accept: str = ""
    ) -> AsyncIterator[list[Object]]:
        assert namespace is None
        assert (labels == LABEL_RECIPE) == (resource is not None and resource.plural != "megatronrecipes")
        assert "PartialObjectMetadata" in accept
        yield [{"metadata": each["metadata"]} for each in self.objects] if resource is self.resource else []
        if self.after is not None and resource is self.resource:
            self.after()


def check(caches: Caches, lists: Any, grace: float = 0.0) -> list[RecipeKey]:
    """The recipes that a check of the pods found to be behind."""
    found: list[RecipeKey] = []
    asyncio.run(CacheCheck(lists, caches, (), found.append).check(caches.pods, grace))
    return found


def test_a_watch_that_misses_a_change_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    caches = Caches()
    caches.pods.put(pod(5))
    with caplog.at_level(logging.WARNING):
        assert check(caches, Lists(pod(6))) == [RUN]
    assert "the watch of pods missed 1 objects" in caplog.text
    assert caches.pods.of_recipe(RUN) == [], "the run is read from the API server"


def test_a_pod_that_went_while_the_watch_was_expired_is_noticed() -> None:
    """After 410 Gone a watch lists again, and reports no deletion of what the list lacks."""
    caches = Caches()
    caches.pods.put(pod(5))
    assert check(caches, Lists()) == [RUN]
    assert caches.pods.of_recipe(RUN) == []


def test_a_pod_that_was_never_delivered_is_noticed() -> None:
    assert check(Caches(), Lists(pod(5))) == [RUN]


def test_a_pod_whose_deletion_the_watch_delivers_after_the_list_is_not_missed() -> None:
    caches = Caches()
    caches.pods.put(pod(5))
    lists = Lists(pod(5))
    lists.after = lambda: caches.pods.remove(pod(6))
    assert check(caches, lists) == []


def test_a_pod_that_was_never_delivered_is_noticed_although_its_predecessor_was_removed() -> None:
    caches = Caches()
    caches.pods.put(pod(5, "old"))
    lists = Lists(pod(8, "new"))
    lists.after = lambda: caches.pods.remove(pod(6, "old"))
    assert check(caches, lists) == [RUN]


def test_what_the_watch_delivers_within_the_grace_is_not_missed() -> None:
    caches = Caches()
    lists = Lists(pod(5))
    lists.after = lambda: asyncio.get_running_loop().call_later(0.01, caches.pods.put, pod(5))
    assert check(caches, lists, grace=60.0) == []


def test_a_pod_created_while_the_list_was_on_its_way_is_not_missed() -> None:
    caches = Caches()
    lists = Lists()
    lists.after = lambda: caches.pods.put(pod(7))
    assert check(caches, lists) == []
    assert version(caches.pods) == 7


def test_a_newer_state_than_the_list_is_not_missed() -> None:
    caches = Caches()
    caches.pods.put(pod(9))
    assert check(caches, Lists(pod(5))) == []


def test_a_resource_that_the_cluster_does_not_know_is_empty() -> None:
    class Unknown:
        async def pages(self, *_: object, **__: object) -> AsyncIterator[list[Object]]:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
            yield []

    assert check(Caches(), Unknown()) == []


def test_a_start_waits_until_the_watches_have_delivered_what_exists() -> None:
    caches = Caches()
    lists: Any = Lists(pod(5), resource=RECIPES)

    async def pods_listed() -> None:
        caches.pods.put(pod(7))
        asyncio.get_running_loop().call_later(0.05, caches.recipes.put, pod(5))

    asyncio.run(CacheCheck(lists, caches, (), lambda _key: None).first_lists(pods_listed))
    assert (version(caches.pods), version(caches.recipes)) == (7, 5)


def test_a_start_does_not_wait_for_what_was_deleted_before_its_watch_began(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_check, "SECOND_LIST", 0.0)
    lists: Any = Lists(pod(5), resource=RECIPES)

    async def pods_listed() -> None:
        lists.objects.clear()

    asyncio.run(CacheCheck(lists, Caches(), (), lambda _key: None).first_lists(pods_listed))
    assert "the caches are not complete" not in caplog.text

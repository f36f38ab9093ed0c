"""Objects are listed once, then watched. A deletion that was missed is found by the next list."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
from megatron_operator.api.labels import LABEL_RECIPE
from megatron_operator.controller.api_client import ApiError, WatchError
from megatron_operator.controller.api_resources import PODS, Resource
from megatron_operator.controller.object_cache import Caches
from megatron_operator.controller.object_watch import ObjectWatch
from megatron_operator.controller.run_watches import RunWatches
from megatron_operator.lifecycle.object_metadata import Object
from megatron_operator.lifecycle.status_builder import RecipeKey

RUN = RecipeKey("default", "run")

pytestmark = pytest.mark.usefixtures("pauses")


def pod(name: str, version: int = 1, uid: str = "") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-of-{name}",
            "resourceVersion": str(version),
            "labels": {LABEL_RECIPE: "run"},
        }
    }


def event(kind: str, obj: Object) -> Object:
    return {"type": kind, "object": obj}


class Pods:
    """Stands in for the API client. Each list and watch takes the next answer; then the test ends."""

    def __init__(
        self, lists: Sequence[list[Object] | Exception], streams: Sequence[Sequence[Object | Exception]]
    ) -> None:
        self.lists, self.streams = list(lists), list(streams)
        self.requests: list[str] = []

    async def versioned_pages(
        self, resource: Any, namespace: str | None, *, labels: str
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        assert (resource, namespace, labels) == (PODS, "default", LABEL_RECIPE)
        self.requests.append("list")
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        # The version of the first page is that of the list.
        yield "5", found[:1]
        yield "", found[1:]

    async def watch(
        self, resource: Any, version: str, _seconds: int, *, namespace: str | None, labels: str
    ) -> AsyncIterator[Object]:
        assert (resource, namespace, labels) == (PODS, "default", LABEL_RECIPE)
        self.requests.append(f"watch from {version}")
        if not self.streams:
            raise asyncio.CancelledError
        for each in self.streams.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


class Watched:
    """What a watch has delivered, until its answers are used up."""

    def __init__(
        self, lists: Sequence[list[Object] | Exception], *streams: Sequence[Object | Exception]
    ) -> None:
        self.api: Any = Pods(lists, streams)
        self.caches = Caches()
        self.delivered: list[str] = []
        self.listed_at: list[bool] = []
        """Whether the list was complete when each of them was delivered."""
        self.lost: list[RecipeKey] = []
        client: Any = self.api
        self.watch = ObjectWatch(
            client, "default", self.caches.pods, self.deliver, self.lost.append, asyncio.Lock()
        )

    def deliver(self, obj: Object, gone: bool) -> None:
        name = obj["metadata"]["name"]
        if name == "unreadable":
            raise ValueError("no pod")
        self.delivered.append(f"{name} is gone" if gone else name)
        self.listed_at.append(self.watch.listed.is_set())
        (self.caches.pods.remove if gone else self.caches.pods.put)(obj)

    def run(self) -> "Watched":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(self.watch.run())
        return self


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between requests, which take no time."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        if seconds:
            found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", paused)
    return found


def test_each_pod_and_each_change_is_delivered(pauses: list[float]) -> None:
    changes = [event("ADDED", pod("c", 6)), event("MODIFIED", pod("a", 7)), event("DELETED", pod("b", 8))]
    watched = Watched([[pod("a"), pod("b")]], changes).run()
    assert watched.delivered == ["a", "b", "c", "a", "b is gone"]
    assert watched.api.requests == ["list", "watch from 5", "watch from 8"]
    assert not pauses, "a watch that the API server ends at its time goes on at once"


def test_a_bookmark_delivers_nothing_and_moves_the_version() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    watched = Watched([[]], [bookmark]).run()
    assert watched.delivered == []
    assert watched.api.requests[-1] == "watch from 9"


def test_the_first_list_is_complete_once_every_page_is_delivered() -> None:
    watched = Watched([ApiError(500, "InternalError", "etcd"), [pod("a"), pod("b")]])
    assert not watched.watch.listed.is_set()
    watched.run()
    assert watched.watch.listed.is_set()
    assert watched.delivered == ["a", "b"]
    assert watched.listed_at == [False, False]


def test_a_connection_that_breaks_continues_from_the_last_version() -> None:
    broken = aiohttp.ClientConnectionError("reset")
    watched = Watched([[]], [event("ADDED", pod("a", 6)), broken], [TimeoutError()], []).run()
    assert watched.api.requests == ["list", *(f"watch from {each}" for each in (5, 6, 6, 6))]


def test_a_deletion_that_was_missed_is_found_by_the_next_list() -> None:
    before, after = [pod("a"), pod("b"), pod("c")], [pod("a"), pod("c", uid="created again")]
    watched = Watched([before, after], [ApiError(410, "Expired", "too old")]).run()
    assert watched.lost == [RUN, RUN]
    assert watched.caches.pods.known("default", "b") is None
    known = watched.caches.pods.known("default", "c")
    assert known is not None
    assert known.uid == "created again"


def test_pods_of_other_namespaces_are_not_missed() -> None:
    other = pod("elsewhere")
    other["metadata"]["namespace"] = "other"
    watched = Watched([[]])
    watched.caches.pods.put(other)
    watched.run()
    assert watched.lost == []
    assert watched.caches.pods.known("other", "elsewhere") is not None


def test_requests_that_bring_nothing_are_repeated_ever_less_often(pauses: list[float]) -> None:
    refused: list[Object | Exception] = [ApiError(429, "TooManyRequests", "later")]
    moved: list[Object | Exception] = [event("ADDED", pod("a", 6))]
    watched = Watched([OSError("no route"), []], refused, [], refused, moved, refused).run()
    assert pauses == [1.0, 2.0, 4.0, 5.0, 1.0]
    assert watched.api.requests.count("list") == 2, "no list is needed after a refused watch"


def test_connections_that_break_after_each_event_cause_no_pause(pauses: list[float]) -> None:
    """As behind a proxy that ends each connection after some minutes."""
    broken = aiohttp.ClientConnectionError("reset")
    stream: list[Object | Exception] = [event("ADDED", pod("a", 6)), broken]
    Watched([[]], *[stream] * 5).run()
    assert not pauses


@pytest.mark.parametrize("code", [410, 500])
def test_a_watch_that_ends_with_an_error_leads_to_another_list(code: int) -> None:
    """The API server may not be able to continue from this version."""
    watched = Watched([[pod("a")], [pod("a", 9)]], [WatchError(code, "Expired", "too old")]).run()
    assert watched.api.requests == ["list", "watch from 5", "list", "watch from 5"]
    assert watched.delivered == ["a", "a"]


def test_watches_that_end_with_an_error_after_each_event_do_not_list_without_a_pause(
    pauses: list[float],
) -> None:
    stream: list[Object | Exception] = [event("ADDED", pod("a", 6)), WatchError(500, "Unknown", "etcd")]
    Watched([[]] * 4, *[stream] * 3).run()
    assert pauses == [1.0, 1.0, 1.0]


def test_a_pod_that_cannot_be_read_keeps_no_other_one_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        watched = Watched([[pod("unreadable"), pod("a")]], [event("ADDED", pod("unreadable", 6))]).run()
    assert watched.delivered == ["a"]
    assert watched.api.requests == ["list", "watch from 5", "watch from 6"]
    assert caplog.text.count("pods default/unreadable cannot be read") == 2


def test_an_event_of_another_form_leads_to_another_list() -> None:
    watched = Watched([[pod("a")], [pod("a", 7)]], [{"type": "MODIFIED"}]).run()
    assert watched.api.requests == ["list", "watch from 5", "list", "watch from 5"]


def test_a_kind_that_the_cluster_does_not_know_yet_is_reported_once_and_asked_for_seldom(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    missing = ApiError(404, "NotFound", "no such resource")
    with caplog.at_level(logging.INFO):
        watched = Watched([*[missing] * 7, [pod("a")]]).run()
    assert caplog.text.count("no such resource") == 1
    assert pauses[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert watched.delivered == ["a"], "it is installed meanwhile"


class Namespaces:
    """An API server with one job and one pod in each namespace."""

    def __init__(self) -> None:
        self.listing = 0
        self.most_lists = 0

    async def versioned_pages(
        self, resource: Resource, namespace: str, **_: str
    ) -> AsyncIterator[tuple[str, list[Object]]]:
        self.listing += 1
        self.most_lists = max(self.most_lists, self.listing)
        await asyncio.sleep(0)
        found = pod(f"{resource.plural}-of-{namespace}")
        found["metadata"]["namespace"] = namespace
        yield "5", [found]
        self.listing -= 1

    async def watch(self, *_: object, **__: object) -> AsyncIterator[Object]:
        await asyncio.Event().wait()
        yield {}


async def test_each_namespace_is_listed_in_turn_and_pods_once_that_is_asked_for() -> None:
    api: Any = Namespaces()
    jobs, pods = list[str](), list[str]()
    watches = RunWatches(
        api,
        ("a", "b"),
        Caches(),
        lambda obj, _gone: jobs.append(obj["metadata"]["name"]),
        lambda obj, _gone: pods.append(obj["metadata"]["name"]),
        lambda _key: None,
    )
    running = asyncio.create_task(watches.run())
    async with asyncio.timeout(10):
        while len(jobs) < 2:
            await asyncio.sleep(0)
        assert not pods
        await watches.list_pods()
    assert (jobs, pods) == (["pytorchjobs-of-a", "pytorchjobs-of-b"], ["pods-of-a", "pods-of-b"])
    assert api.most_lists == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

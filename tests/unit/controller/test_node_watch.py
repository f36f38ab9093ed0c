"""Nodes are listed once and then watched; what matters of them is kept, and only changes are reported."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from megatron_operator.api.platform import Maintenance
from megatron_operator.controller import collection_watch, node_watch
from megatron_operator.controller.api_client import ApiError
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.node_state import Taint
from megatron_operator.lifecycle.status_builder import RecipeKey

RUN, OTHER = RecipeKey("default", "run"), RecipeKey("default", "other")
TAINT = "karpenter.sh/disrupted"


def node(name: str, version: int = 1, *, taint: str | None = None, heartbeat: str = "") -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}
    return {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
        "status": {"conditions": [ready]},
    }


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": obj}


class Nodes:
    """Stands in for the API client. Each watch request takes the next of `streams`; then the test ends."""

    def __init__(self, *streams: list[dict[str, Any] | Exception]) -> None:
        self.streams = list(streams)
        self.lists = 0
        self.watched_from: list[str] = []

    async def versioned_pages(
        self, _resource: Any, _namespace: None
    ) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
        self.lists += 1
        yield "5", [node("a"), node("b")]
        yield "", [node("c", taint=TAINT)]

    async def watch(self, _resource: Any, version: str, _seconds: int) -> AsyncIterator[dict[str, Any]]:
        self.watched_from.append(version)
        if not self.streams:
            raise asyncio.CancelledError
        for each in self.streams.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_watch, "PAUSE", 0.0)


def watched(*streams: list[dict[str, Any] | Exception]) -> tuple[NodeWatch, Nodes, list[RecipeKey]]:
    """A watch that has seen all of this, with a run on node a and another one on node b."""
    api, notified = Nodes(*streams), list[RecipeKey]()
    client: Any = api
    watch = NodeWatch(client, notified.append)
    assert watch.of(RUN, ["a"]) is None, "nothing is known before the first list"
    watch.of(OTHER, ["b"])

    async def run() -> None:
        await watch.refresh()
        notified.clear()
        await watch.run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    return watch, api, notified


def test_a_change_is_reported_to_the_runs_on_the_node() -> None:
    watch, api, notified = watched([event("MODIFIED", node("a", 6, taint=TAINT))])
    assert notified == [RUN]
    known = watch.of(RUN, ["a", "gone"])
    assert known is not None
    assert {name: each.taints for name, each in known.items()} == {"a": frozenset({TAINT})}
    assert watch.announcing(Maintenance(), 0.0) == dict.fromkeys("ac", f"node taint {TAINT}")
    assert watch.announcing(Maintenance(taints=[]), 0.0) == {}
    assert (api.lists, api.watched_from) == (1, ["5", "6"])


def test_heartbeats_and_bookmarks_are_no_change() -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    _, api, notified = watched(
        [event("MODIFIED", node("a", 6, heartbeat="now")), event("BOOKMARK", bookmark)]
    )
    assert notified == []
    assert api.watched_from == ["5", "9"]


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
def test_a_refused_watch_goes_on_without_another_list_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(collection_watch, "PAUSE", 5.0)
    monkeypatch.setattr(collection_watch.asyncio, "sleep", paused)
    refused = [ApiError(status, "Refused", "not now")]
    _, api, _ = watched(refused, refused, [event("MODIFIED", node("a", 6))], refused)
    assert (api.lists, api.watched_from) == (1, ["5", "5", "5", "6", "6"])
    assert pauses == [10.0, 20.0, 5.0, 10.0]


def test_statuses_that_no_node_has_any_more_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_watch, "SPARE_PARTS", 10)
    watch, _, _ = watched([event("MODIFIED", node("a", 6 + n, taint=f"taint-{n}")) for n in range(1000)])
    assert len(watch._shared) <= 2 * 3 + 10
    known = watch.of(RUN, ["a"])
    assert known is not None
    assert known["a"].taints == {"taint-999"}


def test_a_node_that_is_gone_is_no_longer_known() -> None:
    watch, _, notified = watched([event("DELETED", node("b", 6))])
    assert notified == [OTHER]
    assert watch.of(OTHER, ["b"]) == {}


def test_a_lost_connection_continues_and_a_version_that_is_too_old_lists_again() -> None:
    lost, expired = aiohttp.ClientPayloadError("lost"), ApiError(410, "Expired", "too old")
    _, api, notified = watched(
        [event("MODIFIED", node("a", 6, taint=TAINT)), lost], [event("MODIFIED", node("b", 7))], [expired]
    )
    assert api.watched_from == ["5", "6", "7", "5"]
    assert api.lists == 2
    assert notified == [RUN, RUN], "the list shows that what was reported is over"


@pytest.mark.parametrize("error", [ApiError(410, "Expired", "too old"), KeyError("no object")])
def test_a_watch_that_has_missed_changes_has_no_fresh_nodes_before_the_next_list(error: Exception) -> None:
    api: Any = Nodes([error])
    watch = NodeWatch(api, lambda _run: None)

    async def ends(_resource: Any, _namespace: None) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
        raise asyncio.CancelledError
        yield "", []

    async def run() -> None:
        await watch.refresh()
        assert watch.fresh(["a", "gone"]) is not None
        api.versioned_pages = ends
        await watch.run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert watch.fresh(["a"]) is None


def test_a_run_that_is_gone_is_not_notified() -> None:
    api: Any = Nodes()
    notified: list[RecipeKey] = []
    watch = NodeWatch(api, notified.append)
    watch.of(RUN, ["a"])
    watch.forget(RUN)
    asyncio.run(watch.refresh())
    assert notified == []


def test_taints_that_keep_pods_away_are_those_of_ready_nodes() -> None:
    tainted = node("c", 6)
    tainted["spec"]["taints"] = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "preferred", "effect": "PreferNoSchedule"},
    ]
    lost = node("b", 7, taint="lost")
    lost["status"]["conditions"][0]["status"] = "Unknown"
    watch, _, _ = watched([event("MODIFIED", tainted), event("MODIFIED", lost)])
    assert watch.taints() == {Taint("nvidia.com/gpu", "present", "NoSchedule")}
    client: Any = Nodes()
    assert NodeWatch(client, lambda _run: None).taints() is None


START = "cloud.google.com/scheduled-maintenance-time"


def scheduled(name: str, version: int, key: str, value: str) -> dict[str, Any]:
    found = node(name, version)
    found["metadata"]["labels"] = {key: value}
    return found


def test_a_scheduled_start_is_reported_and_announces_from_a_day_before_a_run_would_have_to_leave() -> None:
    watch, _, notified = watched([event("MODIFIED", scheduled("a", 6, START, "1733083200"))])
    assert notified == [RUN]
    rules, near = Maintenance(taints=[], lead_time=600), 1733083200.0 - 86_400 - 600 - 300
    assert watch.announcing(rules, near, 300.0) == {}
    assert watch.announcing(rules, near + 1, 300.0) == {"a": f"node label {START}"}


def test_of_the_nodes_that_announce_maintenance_those_that_go_first_come_first() -> None:
    starts = {"a": 1733083200, "b": 1733079600, "d": 1733079600}
    scheduled_nodes = [scheduled(name, 6, START, str(start)) for name, start in starts.items()]
    watch, _, _ = watched([event("MODIFIED", each) for each in scheduled_nodes])
    watch.handle(event("MODIFIED", node("c", 7, taint=TAINT)))
    assert list(watch.announcing(Maintenance(), 1733076000.0)) == ["c", "b", "d", "a"]


def test_a_value_that_is_no_time_is_logged_once_for_each_node_and_key(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    milliseconds = "1733083200000"
    events = [event("MODIFIED", scheduled(name, 6, START, milliseconds)) for name in "aab"]
    watched(events)
    assert caplog.messages == [
        f"node {name}: node label {START} is '{milliseconds}', which is no time: use seconds since 1970, or "
        "RFC 3339 with a zone"
        for name in "ab"
    ]
    caplog.clear()
    monkeypatch.setattr(node_watch, "MOST_LOGGED", 1)
    watched(events)
    assert len(caplog.messages) == 1


def test_all_nodes_are_listed_again_for_other_keys_of_start_times() -> None:
    key = "example.com/maintenance-start"
    api = Nodes()
    client: Any = api
    watch = NodeWatch(client, lambda _run: None)

    async def run() -> None:
        await watch.refresh()
        watch.follow_start_times(Maintenance().start_times)
        with pytest.raises(asyncio.CancelledError):
            await watch.run()
        assert api.lists == 1, "the default is followed from the beginning"
        api.streams = [[event("MODIFIED", node("b", 6))], []]
        watch.follow_start_times([key])
        await watch.run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert api.lists == 2
    watch.handle(event("MODIFIED", scheduled("a", 7, key, "1733083200")))
    assert watch.announcing(Maintenance(), 1733083200.0)["a"] == f"node label {key}"


def test_the_first_list_has_the_keys_that_were_set_before_it() -> None:
    api: Any = Nodes([event("MODIFIED", node("b", 6))])
    watch = NodeWatch(api, lambda _run: None)
    watch.follow_start_times(["example.com/maintenance-start"])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run())
    assert api.lists == 1


def test_a_list_for_other_keys_is_repeated_until_it_succeeds() -> None:
    key, api = "example.com/maintenance-start", Failing(failures=2)
    client: Any = api
    watch = NodeWatch(client, lambda _run: None)
    watch.follow_start_times([key])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run())
    assert api.lists == 3
    assert watch.announcing(Maintenance(), 1733083200.0)["d"] == f"node label {key}"


def test_keys_that_are_set_during_a_list_cause_another_one() -> None:
    key, api = "example.com/maintenance-start", Failing()
    api.streams = [[event("MODIFIED", node("e", 6))]]
    client: Any = api
    watch = NodeWatch(client, lambda _run: None)
    api.meanwhile = lambda: watch.follow_start_times([key])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run())
    assert api.lists == 2
    assert watch.announcing(Maintenance(), 1733083200.0)["d"] == f"node label {key}"


class Failing(Nodes):
    """Lists of nodes fail after their first page, so often; `meanwhile` is called after it."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.meanwhile: Callable[[], None] = lambda: None

    async def versioned_pages(
        self, _resource: Any, _namespace: None
    ) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
        self.lists += 1
        yield "5", [scheduled("d", 5, "example.com/maintenance-start", "1733083200")]
        self.meanwhile()
        if self.lists <= self.failures:
            raise aiohttp.ClientPayloadError("lost")
        yield "", [node("e")]

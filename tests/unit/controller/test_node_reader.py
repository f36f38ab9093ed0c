"""Nodes are read only where a pod needs it and the watch does not have them, and cached briefly."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from megatron_operator.api.times import timestamp
from megatron_operator.controller import collection_watch
from megatron_operator.controller.node_reader import FRESH, NodeReader
from megatron_operator.controller.node_watch import NodeWatch
from megatron_operator.lifecycle.node_state import NodeState, NodeStatus
from megatron_operator.lifecycle.snapshot import abandoned_pods

NOW = 1_800_000_000.0


def deleting(node: str) -> dict[str, Any]:
    """A pod on this node whose grace period has not ended."""
    return {
        "metadata": {"name": "run-worker-0", "deletionTimestamp": timestamp(NOW + 100)},
        "spec": {"nodeName": node},
    }


def node(name: str, ready: str) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "2"}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


class NodesInMemory:
    """Stands in for the API client, for nodes only."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        self.requests: list[str | None] = []

    async def find(self, _resource: Any, _namespace: None, *, fields: str | None = None) -> list[Any]:
        self.requests.append(fields)
        if fields is None:
            return list(self.nodes.values())
        name = fields.removeprefix("metadata.name=")
        return [self.nodes[name]] if name in self.nodes else []

    async def pages(self, resource: Any, namespace: None) -> AsyncIterator[list[Any]]:
        yield await self.find(resource, namespace)

    async def versioned_pages(self, _resource: Any, _namespace: None) -> AsyncIterator[tuple[str, list[Any]]]:
        yield "1", list(self.nodes.values())


def test_a_few_nodes_are_read_one_by_one_and_cached() -> None:
    api: Any = NodesInMemory(node("a", "True"), node("b", "Unknown"))
    reader = NodeReader(api, allowed=True)
    pods = [deleting("a"), deleting("b"), deleting("c")]

    async def read_twice() -> dict[str, NodeStatus]:
        await reader.of(pods, NOW)
        return await reader.of(pods, NOW)

    found = {name: each.state for name, each in asyncio.run(read_twice()).items()}
    assert found == {"a": NodeState.READY, "b": NodeState.UNREACHABLE, "c": NodeState.GONE}
    assert api.requests == ["metadata.name=a", "metadata.name=b", "metadata.name=c"]


def test_a_node_that_others_drop_from_the_cache_during_a_read_is_still_returned(monkeypatch: Any) -> None:
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])

    class Slow(NodesInMemory):
        async def find(self, resource: Any, namespace: None, *, fields: str | None = None) -> list[Any]:
            if fields == "metadata.name=slow":
                moment[0] += FRESH
                await reader.of([deleting("third")], NOW)
            return await super().find(resource, namespace, fields=fields)

    api: Any = Slow(*(node(name, "Unknown") for name in ("first", "slow", "third")))
    reader = NodeReader(api, allowed=True)

    async def read() -> dict[str, NodeStatus]:
        await reader.of([deleting("first")], NOW)
        return await reader.of([deleting("first"), deleting("slow")], NOW)

    assert asyncio.run(read()).keys() == {"first", "slow"}


def test_for_many_nodes_the_whole_list_is_read_once() -> None:
    api: Any = NodesInMemory(*(node(f"n{index}", "Unknown") for index in range(40)))
    pods = [deleting(name) for name in api.nodes]
    found = asyncio.run(NodeReader(api, allowed=True).of(pods, NOW))
    assert api.requests == [None]
    assert len(found) == 40


def test_a_clock_that_was_set_back_does_not_delay_the_deletion_of_pods_on_a_lost_node(
    monkeypatch: Any,
) -> None:
    api: Any = NodesInMemory(node("a", "Unknown"))
    api.nodes["a"]["status"]["conditions"][0]["lastTransitionTime"] = timestamp(NOW)
    reader, moment = NodeReader(api, allowed=True), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])

    async def read_twice() -> bool:
        await reader.of([deleting("a")], NOW - 3600)
        moment[0] += 31
        nodes = await reader.of([deleting("a")], NOW - 3569)
        return bool(abandoned_pods([deleting("a")], nodes, NOW - 3569))

    assert asyncio.run(read_twice())


def test_a_node_that_recovered_unread_has_the_whole_patience_in_its_next_outage(monkeypatch: Any) -> None:
    api: Any = NodesInMemory(node("a", "Unknown"))
    ready = api.nodes["a"]["status"]["conditions"][0]
    reader, moment = NodeReader(api, allowed=True), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])

    async def lost_since(outage: float, now: float) -> float:
        ready["lastTransitionTime"] = timestamp(outage)
        moment[0] = 100.0 + now - NOW
        return (await reader.of([deleting("a")], now))["a"].since

    assert asyncio.run(lost_since(NOW, now=NOW + 5)) == NOW
    again = NOW + 86_400
    assert asyncio.run(lost_since(again, now=again + 5)) == again
    assert asyncio.run(lost_since(again, now=again + 40)) == again


def watched(*nodes: dict[str, Any]) -> tuple[NodeReader, NodeWatch, NodesInMemory]:
    """A reader with a synchronised watch of these nodes."""
    memory = NodesInMemory(*nodes)
    api: Any = memory
    watch = NodeWatch(api, lambda _run: None)
    asyncio.run(watch.refresh())
    return NodeReader(api, watch, allowed=True), watch, memory


def states(reader: NodeReader, pods: list[dict[str, Any]], *also: str) -> dict[str, NodeState]:
    return {name: each.state for name, each in asyncio.run(reader.of(pods, NOW, also)).items()}


def test_nodes_that_are_ready_or_cost_no_pod_come_from_the_watch() -> None:
    reader, _, api = watched(node("a", "True"), node("b", "Unknown"))
    assert states(reader, [deleting("a")], "b", "gone") == {
        "a": NodeState.READY,
        "b": NodeState.UNREACHABLE,
        "gone": NodeState.GONE,
    }
    assert api.requests == []


def test_nodes_for_which_a_pod_could_be_deleted_by_force_are_read() -> None:
    reader, _, api = watched(node("a", "Unknown"), node("b", "False"))
    api.nodes["a"] = node("a", "True")
    api.nodes["new"] = node("new", "True")
    pods = [deleting("a"), deleting("b"), deleting("new")]
    expected = {"a": NodeState.READY, "b": NodeState.NOT_READY, "new": NodeState.READY}
    assert states(reader, pods) == expected, "the watch is behind"
    assert api.requests == [f"metadata.name={name}" for name in ("a", "b", "new")]


def test_nodes_are_read_while_the_watch_is_silent_or_has_no_list(monkeypatch: Any) -> None:
    reader, watch, api = watched(node("a", "True"))
    late = time.monotonic() + collection_watch.LONGEST_SILENCE
    monkeypatch.setattr(collection_watch.time, "monotonic", lambda: late)
    states(reader, [deleting("a")], "a")
    assert len(api.requests) == 1
    watch.handle({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "3"}}})
    states(reader, [deleting("a")], "a")
    assert len(api.requests) == 1, "the watch has nothing that is newer"
    client: Any = api
    states(NodeReader(client, NodeWatch(client, lambda _run: None), allowed=True), [deleting("a")])
    assert len(api.requests) == 2


def test_what_the_watch_reports_of_a_node_counts_at_once() -> None:
    reader, watch, _ = watched(node("a", "True"))
    watch.handle({"type": "MODIFIED", "object": node("a", "Unknown")})
    assert states(reader, [], "a") == {"a": NodeState.UNREACHABLE}
    watch.handle({"type": "DELETED", "object": node("a", "Unknown")})
    assert states(reader, [], "a") == {"a": NodeState.GONE}


def test_running_pods_and_missing_permission_cause_no_request() -> None:
    api: Any = NodesInMemory(node("a", "Unknown"))
    assert asyncio.run(NodeReader(api, allowed=False).of([deleting("a")], NOW)) == {}
    running = {"metadata": {"name": "run-worker-0"}, "spec": {"nodeName": "a"}}
    assert asyncio.run(NodeReader(api, allowed=True).of([running], NOW)) == {}
    assert api.requests == []

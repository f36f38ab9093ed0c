"""The list of the cluster: read once for all runs, and again while the last one is used."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from megatron_operator.controller import cluster_reader
from megatron_operator.controller.api_resources import NODES, Resource
from megatron_operator.controller.cluster_reader import ClusterReader
from megatron_operator.lifecycle.capacity import ClusterUsage


class Cluster:
    """The API server: `nodes` as they are when a list is complete, which waits for `go`."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = nodes
        self.lists = 0
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def pages(self, resource: Resource, *_: Any, **__: Any) -> AsyncIterator[list[dict[str, Any]]]:
        if resource is NODES:
            self.lists += 1
            await self.go.wait()
            if self.error is not None:
                raise self.error
            yield [{"metadata": {"name": name}} for name in self.nodes]


def reader(cluster: Cluster) -> ClusterReader:
    api: Any = cluster
    return ClusterReader(api)


def names(usage: ClusterUsage) -> list[str]:
    return [node["metadata"]["name"] for node in usage.nodes]


async def turns() -> None:
    """Let all tasks go on until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`later(seconds)` lets the clock of the reader go on."""
    now = [1000.0]
    monkeypatch.setattr(cluster_reader.time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


async def test_runs_that_ask_at_the_same_time_share_a_list() -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    found = await asyncio.gather(*(lists.read() for _ in range(10)))
    assert {tuple(names(each)) for each in found} == {("a",)}
    assert cluster.lists == 1


async def test_an_old_list_is_used_while_a_new_one_is_read(later: Any) -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    await lists.read()
    cluster.nodes = ("a", "b")
    later(cluster_reader.FRESH)
    cluster.go.clear()
    for _ in range(3):
        assert names(await lists.read()) == ["a"]
        await turns()
    assert cluster.lists == 2
    cluster.go.set()
    await turns()
    assert names(await lists.read()) == ["a", "b"]
    assert cluster.lists == 2


async def test_a_list_that_is_too_old_is_not_used(later: Any) -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    await lists.read()
    cluster.nodes = ("b",)
    later(cluster_reader.USABLE * cluster_reader.FRESH)
    assert names(await lists.read()) == ["b"]


async def test_after_it_has_expired_a_list_that_was_begun_before_is_not_used(later: Any) -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    await lists.read()
    later(cluster_reader.FRESH)
    cluster.go.clear()
    await lists.read()
    await turns()
    lists.expire()
    waiting = asyncio.create_task(lists.read())
    await turns()
    cluster.nodes = ("b",)
    cluster.go.set()
    assert names(await waiting) == ["b"]
    assert cluster.lists == 3


async def test_a_node_that_is_not_listed_is_looked_for_once() -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    await lists.read()
    cluster.nodes = ("a", "new")
    assert names(await lists.read({"new"})) == ["a", "new"]
    await lists.read({"gone"})
    await lists.read({"gone", "new"})
    assert cluster.lists == 3


@pytest.mark.parametrize("error", [TimeoutError("no answer in time"), RuntimeError("of another kind")])
async def test_a_list_that_fails_leaves_the_last_one_as_long_as_it_may_be_used(
    later: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    cluster = Cluster("a")
    lists = reader(cluster)
    await lists.read()
    later(cluster_reader.FRESH)
    cluster.error = error
    assert names(await lists.read()) == ["a"]
    await turns()
    assert names(await lists.read()) == ["a"]
    assert f"cannot list nodes and pods: {error}" in caplog.text
    later(cluster_reader.USABLE * cluster_reader.FRESH)
    with pytest.raises(type(error)):
        await lists.read()
    cluster.error = None
    assert names(await lists.read()) == ["a"]

"""Which pods that are being deleted would stay for ever."""

import asyncio
import time
from typing import Any

import pytest
from megatron_operator.api.times import timestamp
from megatron_operator.controller.node_reader import Node, Nodes, NodeState, node_state
from megatron_operator.lifecycle.snapshot import given_up

NOW = 1_800_000_000.0


def ending(seconds_over: float, **status: Any) -> dict[str, Any]:
    """A pod whose grace period ended so long ago."""
    return {
        "metadata": {"name": "run-worker-0", "deletionTimestamp": timestamp(NOW - seconds_over)},
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


def node(name: str, ready: str | None) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("ready", "state"),
    [
        ("True", NodeState.READY),
        ("False", NodeState.NOT_READY),
        ("Unknown", NodeState.SILENT),
        (None, NodeState.SILENT),
    ],
)
def test_a_nodes_state_is_its_ready_condition(ready: str | None, state: NodeState) -> None:
    assert node_state(node("n", ready)) is state


@pytest.mark.parametrize(
    ("state", "since", "seconds_over", "expected"),
    [
        (NodeState.SILENT, 29, -290, False),
        (NodeState.SILENT, 30, -290, True),
        (NodeState.SILENT, 10, 1, True),
        (NodeState.GONE, NOW, -290, True),
        (NodeState.NOT_READY, 500, 20, False),
        (NodeState.NOT_READY, 500, 40, True),
        (NodeState.READY, 500, 4000, False),
    ],
)
def test_only_pods_that_no_kubelet_ends_are_deleted_by_force(
    state: NodeState, since: float, seconds_over: float, expected: bool
) -> None:
    pod = ending(seconds_over)
    assert given_up([pod], {"node-1": Node(state, NOW - since)}, NOW) == ([pod] if expected else [])


def test_a_pod_that_is_not_being_deleted_is_left_alone() -> None:
    pod = ending(100)
    del pod["metadata"]["deletionTimestamp"]
    assert given_up([pod], {"node-1": Node(NodeState.GONE)}, NOW) == []


def test_where_nodes_may_not_be_read_the_pods_own_word_and_more_patience_must_do() -> None:
    evicted = {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]
    }
    assert given_up([ending(100, **evicted)], {}, NOW) == []
    assert len(given_up([ending(130, **evicted)], {}, NOW)) == 1
    assert given_up([ending(4000)], {}, NOW) == [], "a pod deleted by somebody may take its time"


class Listing:
    """A cluster that answers for nodes alone."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        self.asked: list[str | None] = []

    async def find(self, _resource: Any, _namespace: None, *, fields: str | None = None) -> list[Any]:
        self.asked.append(fields)
        if fields is None:
            return list(self.nodes.values())
        name = fields.removeprefix("metadata.name=")
        return [self.nodes[name]] if name in self.nodes else []


def on(node: str) -> dict[str, Any]:
    pod = ending(-100)
    pod["spec"]["nodeName"] = node
    return pod


def test_nodes_are_asked_for_one_by_one_and_not_again_at_once() -> None:
    cluster: Any = Listing(node("a", "True"), node("b", "Unknown"))
    nodes = Nodes(cluster, allowed=True)
    pods = [on("a"), on("b"), on("c")]

    async def look() -> dict[str, Node]:
        await nodes.of(pods, NOW)
        return await nodes.of(pods, NOW)

    states = {name: each.state for name, each in asyncio.run(look()).items()}
    assert states == {"a": NodeState.READY, "b": NodeState.SILENT, "c": NodeState.GONE}
    assert cluster.asked == ["metadata.name=a", "metadata.name=b", "metadata.name=c"]


def test_for_a_dead_block_of_nodes_the_whole_list_is_read_once() -> None:
    cluster: Any = Listing(*(node(f"n{index}", "Unknown") for index in range(40)))
    states = asyncio.run(Nodes(cluster, allowed=True).of([on(name) for name in cluster.nodes], NOW))
    assert cluster.asked == [None]
    assert len(states) == 40


def test_a_clock_that_was_set_back_does_not_keep_a_dead_node_alive(monkeypatch: Any) -> None:
    cluster: Any = Listing(node("a", "Unknown"))
    cluster.nodes["a"]["status"]["conditions"][0]["lastTransitionTime"] = timestamp(NOW)
    nodes, moment = Nodes(cluster, allowed=True), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])

    async def look() -> bool:
        await nodes.of([on("a")], NOW - 3600)
        moment[0] += 31
        seen = await nodes.of([on("a")], NOW - 3569)
        return bool(given_up([on("a")], seen, NOW - 3569))

    assert asyncio.run(look())


def test_pods_that_live_and_nodes_that_may_not_be_read_cost_no_request() -> None:
    cluster: Any = Listing(node("a", "Unknown"))
    assert asyncio.run(Nodes(cluster, allowed=False).of([ending(100)], NOW)) == {}
    alive = {"metadata": {"name": "run-worker-0"}, "spec": {"nodeName": "a"}}
    assert asyncio.run(Nodes(cluster, allowed=True).of([alive], NOW)) == {}
    assert cluster.asked == []

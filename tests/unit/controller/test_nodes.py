"""Which pods that are being deleted would stay for ever."""

import asyncio
from typing import Any

import pytest
from megatron_operator.controller.draft import timestamp
from megatron_operator.controller.nodes import Nodes, NodeState, node_state, overdue

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
    ("state", "seconds_over", "expected"),
    [
        (NodeState.SILENT, -290, True),
        (NodeState.GONE, -290, True),
        (NodeState.NOT_READY, 20, False),
        (NodeState.NOT_READY, 40, True),
        (NodeState.READY, 4000, False),
    ],
)
def test_only_pods_that_no_kubelet_ends_are_overdue(
    state: NodeState, seconds_over: float, expected: bool
) -> None:
    assert overdue(ending(seconds_over), state, NOW) is expected


def test_a_pod_that_is_not_being_deleted_is_left_alone() -> None:
    pod = ending(100)
    del pod["metadata"]["deletionTimestamp"]
    assert not overdue(pod, NodeState.GONE, NOW)


def test_where_nodes_may_not_be_read_the_pods_own_word_and_more_patience_must_do() -> None:
    evicted = {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]
    }
    assert not overdue(ending(100, **evicted), None, NOW)
    assert overdue(ending(130, **evicted), None, NOW)
    assert not overdue(ending(4000), None, NOW), "a pod deleted by somebody may take its time"


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


def test_nodes_are_asked_for_one_by_one_and_not_again_at_once() -> None:
    cluster: Any = Listing(node("a", "True"), node("b", "Unknown"))
    nodes = Nodes(cluster, allowed=True)

    async def look() -> dict[str, NodeState]:
        await nodes.states(["a", "b", "c"])
        return await nodes.states(["a", "b", "c"])

    states = asyncio.run(look())
    assert states == {"a": NodeState.READY, "b": NodeState.SILENT, "c": NodeState.GONE}
    assert cluster.asked == ["metadata.name=a", "metadata.name=b", "metadata.name=c"]


def test_for_a_dead_block_of_nodes_the_whole_list_is_read_once() -> None:
    cluster: Any = Listing(*(node(f"n{index}", "Unknown") for index in range(40)))
    states = asyncio.run(Nodes(cluster, allowed=True).states(cluster.nodes))
    assert cluster.asked == [None]
    assert len(states) == 40


def test_without_the_right_no_node_is_asked_for() -> None:
    cluster: Any = Listing(node("a", "Unknown"))
    assert asyncio.run(Nodes(cluster, allowed=False).stuck([ending(100)], NOW)) == []
    assert cluster.asked == []

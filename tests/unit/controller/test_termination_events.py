"""What Events tell of pods that were replaced while nobody looked."""

import asyncio
from typing import Any

from megatron_operator.controller.termination_events import ends_from_events
from megatron_operator.lifecycle import PodEnd
from megatron_operator.lifecycle.snapshot import Scene

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


class Told:
    """A cluster that has Events alone; fields are selected as the API server does."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.asked = 0

    async def find(self, _resource: Any, _namespace: str, *, fields: str) -> list[dict[str, Any]]:
        self.asked += 1
        wanted = dict(part.split("=") for part in fields.split(","))
        return [event for event in self.events if all(_at(event, path) == wanted[path] for path in wanted)]


def _at(event: dict[str, Any], path: str) -> Any:
    value: Any = event
    for part in path.split("."):
        value = value.get(part)
    return value


def scheduled(uid: str, node: str, time: str = OLD) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": "Pod", "name": "run-worker-0", "uid": uid},
        "reason": "Scheduled",
        "message": f"Successfully assigned default/run-worker-0 to {node}",
        "lastTimestamp": time,
    }


def exited(code: int, time: str) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": "PyTorchJob", "name": "run", "uid": "j"},
        "reason": "ExitedWithCode",
        "message": f"Pod: default.run-worker-0 exited with code {code}",
        "lastTimestamp": time,
    }


def ends(run: Any, *events: dict[str, Any], since: str = OLD) -> dict[str, PodEnd]:
    run.pods[1]["metadata"]["uid"] = "new"
    scene: Scene = run.scene()
    cluster: Any = Told(*events)
    return asyncio.run(ends_from_events(cluster, scene, scene.pods[1:], since))


def test_exit_code_and_node_of_the_pod_before(run: Any) -> None:
    told = ends(run, scheduled("old", "node-1"), scheduled("new", "node-2", NEW), exited(138, NEW))
    assert told == {"run-worker-0": PodEnd("worker-0: ended (exit code 138)", 138, node="node-1")}


def test_an_exit_of_long_ago_is_not_this_one(run: Any) -> None:
    told = ends(run, scheduled("old", "node-1"), exited(138, OLD), since=NEW)
    assert told["run-worker-0"].exit_code is None


def test_a_pod_that_was_evicted_went_with_its_node(run: Any) -> None:
    eviction = scheduled("old", "") | {"reason": "TaintManagerEviction", "message": "Marking for deletion"}
    told = ends(run, scheduled("old", "node-1"), eviction)["run-worker-0"]
    assert told.node_lost
    assert told.node == "node-1"


def test_nothing_is_made_up(run: Any) -> None:
    assert ends(run, scheduled("new", "node-2")) == {}


def test_what_was_seen_is_not_asked_for(run: Any) -> None:
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    scene = run.scene()
    cluster: Any = Told()
    assert asyncio.run(ends_from_events(cluster, scene, scene.pods[1:], OLD)) == {}
    assert cluster.asked == 0

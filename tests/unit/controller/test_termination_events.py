"""How pods ended that were replaced while the operator was not running, from Events."""

import asyncio
from typing import Any

from megatron_operator.controller.termination_events import ends_from_events
from megatron_operator.lifecycle.placement import DIGITS
from megatron_operator.lifecycle.pod_termination import PodEnd
from megatron_operator.lifecycle.snapshot import RunSnapshot
from megatron_operator.manifests.metadata import digest

PLACEMENT = digest("node-0", DIGITS) + digest("node-1", DIGITS)
"""The operator saw the Master on node-0 and the Worker on node-1."""
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


class EventsInMemory:
    """Stands in for the API client, for Events only; field selectors work as in the API server."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.requests = 0

    async def find(self, _resource: Any, _namespace: str, *, fields: str) -> list[dict[str, Any]]:
        self.requests += 1
        selected = dict(part.split("=") for part in fields.split(","))
        return [
            event for event in self.events if all(_at(event, path) == selected[path] for path in selected)
        ]


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
    snapshot: RunSnapshot = run.snapshot()
    api: Any = EventsInMemory(*events)
    return asyncio.run(ends_from_events(api, snapshot, snapshot.pods[1:], since, PLACEMENT))


def test_events_name_exit_code_and_node_of_the_previous_pod(run: Any) -> None:
    found = ends(run, scheduled("old", "node-1"), scheduled("new", "node-2", NEW), exited(138, NEW))
    assert found == {"run-worker-0": PodEnd("worker-0: ended (exit code 138)", 138, node="node-1")}


def test_an_exit_before_the_last_replacement_is_ignored(run: Any) -> None:
    found = ends(run, scheduled("old", "node-1"), exited(138, OLD), since=NEW)
    assert found["run-worker-0"].exit_code is None


def test_an_evicted_pod_was_lost_with_its_node(run: Any) -> None:
    eviction = scheduled("old", "") | {"reason": "TaintManagerEviction", "message": "Marking for deletion"}
    found = ends(run, scheduled("old", "node-1"), eviction)["run-worker-0"]
    assert found.node_lost
    assert found.node == "node-1"


def test_without_events_of_the_previous_pod_nothing_is_known(run: Any) -> None:
    assert ends(run, scheduled("new", "node-2")) == {}


def test_an_observed_end_causes_no_request(run: Any) -> None:
    run.ends = {"run-worker-0": PodEnd("worker-0: out of memory", 137)}
    snapshot = run.snapshot()
    api: Any = EventsInMemory()
    assert asyncio.run(ends_from_events(api, snapshot, snapshot.pods[1:], OLD, PLACEMENT)) == {}
    assert api.requests == 0

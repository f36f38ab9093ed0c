"""How a pod ended, from Events: anyone in the namespace may have written them."""

from typing import Any

import pytest
from megatron_operator.lifecycle.pod_end_events import exit_code_in_events, previous_pod_end

SINCE = "2026-01-01T00:00:00Z"
POD: dict[str, Any] = {"metadata": {"name": "run-worker-0", "uid": "new"}}


def event(reason: str, message: str) -> dict[str, Any]:
    involved = {"name": "run-worker-0", "uid": "old"}
    return {"reason": reason, "message": message, "lastTimestamp": SINCE, "involvedObject": involved}


def test_the_exit_code_and_the_node_are_read() -> None:
    exited = event("ExitedWithCode", "Pod: default.run-worker-0 exited with code 138")
    assert exit_code_in_events([exited], "run-worker-0", SINCE) == 138
    scheduled = event("Scheduled", "Successfully assigned default/run-worker-0 to node-1.example.com")
    end = previous_pod_end(POD, "worker-0", 138, [scheduled])
    assert end is not None
    assert (end.node, end.exit_code) == ("node-1.example.com", 138)


@pytest.mark.parametrize("code", ["9" * 900, "\u0663\u0663", "-1"])
def test_a_code_that_no_container_ends_with_is_ignored(code: str) -> None:
    forged = event("ExitedWithCode", f"Pod: default.run-worker-0 exited with code {code}")
    assert exit_code_in_events([forged], "run-worker-0", SINCE) is None


@pytest.mark.parametrize("node", ["x" * 900, "<node>", "Node", "\u8a9e"])
def test_a_name_that_no_node_has_is_ignored(node: str) -> None:
    end = previous_pod_end(POD, "worker-0", 138, [event("Scheduled", f"assigned to {node}")])
    assert end is not None
    assert end.node is None

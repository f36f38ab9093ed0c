"""A pod that has a node and does not start is named: its kubelet may report the reason in an Event alone."""

from typing import Any

import pytest
from megatron_operator.api.conditions import Condition
from megatron_operator.api.times import timestamp
from megatron_operator.lifecycle.status_update import SLOW_START_SECONDS, update_status


@pytest.mark.parametrize(
    ("bound", "waited", "named"),
    [(True, SLOW_START_SECONDS + 1, True), (True, SLOW_START_SECONDS, False), (False, 3600, False)],
)
def test_a_pod_that_does_not_start_on_its_node_is_named(
    bound: bool, waited: int, named: bool, run: Any
) -> None:
    run.pods[1] = run.pod("worker", "Pending")
    if bound:
        run.pods[1]["spec"] = {"nodeName": "node-1"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(run.now)}
    run.pods[1]["status"]["conditions"] = [scheduled]
    run.pass_time(waited)
    status = run.status()
    update_status(status, run.snapshot())
    running = status.condition(Condition.RUNNING)
    assert running is not None
    assert running.message.startswith("1 of 2 pods run")
    assert ("kubectl describe pod run-worker-0 has what it waits for" in running.message) == named

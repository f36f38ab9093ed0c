"""The operator over a simulated cluster: a pod that the kubelet of a node that is up cannot end."""

from collections.abc import Callable
from typing import Any

import pytest
from megatron_operator.lifecycle.lingering_pods import LINGERING

from tests.unit.controller.simulated_cluster import GRACE
from tests.unit.controller.simulated_run import Run


def drain(run: Run) -> None:
    run.cluster.delete(run.cluster.pods[1], "EvictionByEvictionAPI")


def suspend(run: Run) -> None:
    run.edit(suspend=True)


def edit(run: Run) -> None:
    run.edit(env={"DEBUG": "1"})


def message(run: Run) -> str:
    return str(run.condition("Running")["message"])


def events(run: Run) -> list[Any]:
    return [each for each in run.api.posted if each["reason"] == "PodNotEnding"]


@pytest.mark.parametrize(
    ("delete", "waits", "ends"),
    [
        (drain, "1 of 2 pods run", lambda run: run.trains()),
        (suspend, "1 pods are ending", lambda run: message(run) == "no pod is left"),
        (edit, "1 pods of the previous job are ending", lambda run: run.trains()),
    ],
)
def test_a_pod_that_cannot_be_killed_is_named_with_its_node_for_as_long_as_the_run_waits(
    training_run: Run, delete: Callable[[Run], None], waits: str, ends: Callable[[Run], bool]
) -> None:
    run, pod = training_run, training_run.cluster.pods[1]
    pod.unkillable = True
    delete(run)
    run.until(lambda: pod.deleted_at is not None)
    run.until(lambda: "run-worker-0" in message(run))
    waited = run.cluster.now - (pod.deleted_at or 0.0)
    assert GRACE + LINGERING < waited < GRACE + LINGERING + 5
    assert message(run).startswith(f"{waits}; not ended by their kubelet: run-worker-0 on {pod.node} (due ")
    for _ in range(60):
        run.cluster.pass_time(5)
        run.operator.reconcile()
    assert pod in run.cluster.pods, "it is not deleted by force"
    [event] = events(run)
    assert event["type"] == "Warning"
    assert event["message"].startswith(f"run-worker-0 on {pod.node} (due ")
    assert "reboot the node" in event["message"]
    pod.unkillable = False
    run.until(lambda: ends(run))
    assert "not ended" not in message(run)
    assert len(events(run)) == 1

"""Nodes with hardware faults that a run has to go on with, or that are gone: two pods on three nodes."""

from typing import Any

import pytest
from megatron_operator.api.labels import ANNOTATION_UNCORDONED_AT

from tests.unit.controller.simulated_run import Run
from tests.unit.controller.whole_operator import KEY


def reports_a_fault(run: Run, name: str, monkeypatch: pytest.MonkeyPatch, hostname: str = "{}") -> None:
    """Let a node have the condition of a faulty device; `hostname` is the label of nodes by their name."""
    of_node = run.api._node

    def node(each: str) -> dict[str, Any]:
        found = of_node(each)
        found["metadata"]["labels"] = {"kubernetes.io/hostname": hostname.format(each)}
        if each == name:
            found["status"]["conditions"].append({"type": "GPUXIDErrors", "status": "True"})
        return found

    monkeypatch.setattr(run.api, "_node", node)


def fail(run: Run, number: int) -> str:
    """Let a pod fail as by its device. Returns its node."""
    pod = run.cluster.pods[number]
    assert pod.node is not None
    run.cluster.fail(pod, 138, "CUDA error")
    run.operator._snapshots.pod_ends.add(KEY, run.api.pod(pod))
    return pod.node


def pass_time(run: Run, seconds: int) -> None:
    for _ in range(seconds):
        run.cluster.pass_time(1)
        run.operator.reconcile()


def events(run: Run, reason: str) -> set[str]:
    return {each["message"] for each in run.api.posted if each["reason"] == reason}


def test_a_node_that_the_run_needs_is_used_again_although_it_still_reports_its_fault(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run
    run.until(run.trains)
    run.cluster.nodes["node-2"].taken = True
    reports_a_fault(run, "node-1", monkeypatch)
    assert fail(run, 1) == "node-1"
    run.until(lambda: run.status["recovery"].get("nodesAvoided") == ["node-1"])
    run.until(run.trains)
    assert {pod.node for pod in run.cluster.pods} == {"node-0", "node-1"}
    assert len(events(run, "NodeAvoided")) == 1
    assert run.status["recovery"]["nodeEvidence"]["node-1"]["releasedAt"]


def test_a_run_whose_edit_was_refused_keeps_its_job_and_a_bad_node_until_the_edit_is_corrected(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run
    run.until(run.trains)
    before = run.cluster.job
    run.edit(parallelism={"tensorModelParallelSize": 3})
    run.until(lambda: run.condition("Planned")["status"] == "False")
    job = run.api.job()
    assert job is not None
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        # Kueue places such pods, so that one cannot move alone.
        replicas["template"]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    run.cluster.nodes["node-2"].taken = True
    reports_a_fault(run, "node-1", monkeypatch)
    fail(run, 1)
    run.until(lambda: bool(events(run, "NodeNotAvoided")))
    run.until(run.trains)
    pass_time(run, 60)
    assert run.cluster.job is before
    evidence = run.status["recovery"]["nodeEvidence"]["node-1"]
    assert "the recipe as it is now is refused" in evidence["notAvoided"]
    assert len(events(run, "NodeNotAvoided")) == 1
    assert not events(run, "NodeAvoided")
    run.cluster.nodes["node-2"].taken = False
    run.edit(parallelism={})
    run.until(lambda: run.condition("Planned")["status"] == "True")
    pass_time(run, 60)
    assert run.cluster.job is before, "until it is interrupted again"
    fail(run, 0)
    run.until(lambda: run.cluster.job not in (None, before) and run.trains())
    assert {pod.node for pod in run.cluster.pods} == {"node-0", "node-2"}


def test_an_avoided_node_that_no_longer_exists_is_forgotten_an_hour_later(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run
    run.until(run.trains)
    reports_a_fault(run, "node-1", monkeypatch)
    fail(run, 1)
    run.until(lambda: run.status["recovery"].get("nodesAvoided") == ["node-1"])
    run.until(lambda: run.trains() and {pod.node for pod in run.cluster.pods} == {"node-0", "node-2"})
    run.cluster.now += 3600
    pass_time(run, 30)
    assert run.status["recovery"]["nodesAvoided"] == ["node-1"], "it still exists"
    del run.cluster.nodes["node-1"]
    run.until(lambda: not run.status["recovery"].get("nodesAvoided"))
    assert not run.status["recovery"].get("nodeEvidence")


def test_an_avoided_node_that_was_uncordoned_since_is_used_again(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = training_run, training_run.api._node
    run.until(run.trains)
    pod = run.cluster.pods[1]
    run.cluster.fail(pod, 138, "ECC error", "DeviceMemory")
    run.operator._snapshots.pod_ends.add(KEY, run.api.pod(pod))
    run.until(lambda: run.status["recovery"].get("nodesAvoided") == ["node-1"])
    run.until(run.trains)
    run.cluster.now += 3600
    pass_time(run, 30)
    assert run.status["recovery"]["nodesAvoided"] == ["node-1"], "its fault is not over"
    annotations = {ANNOTATION_UNCORDONED_AT: str(int(run.cluster.now))}
    monkeypatch.setattr(run.api, "_node", lambda name: add_annotations(read(name), annotations))
    run.until(lambda: not run.status["recovery"].get("nodesAvoided"))
    assert not run.status["recovery"].get("nodeEvidence")
    assert events(run, "NodeReleased")


def add_annotations(node: Any, annotations: dict[str, str]) -> Any:
    return node | {"metadata": node["metadata"] | {"annotations": annotations}}


def test_where_host_names_are_no_names_of_nodes_a_pod_on_an_avoided_node_is_deleted_once(
    training_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run

    def schedule_anywhere() -> None:
        for pod in run.cluster.pods:
            if pod.node is None and pod.deleted_at is None and (free := sorted(run.cluster.free())):
                pod.node, pod.bound_at = free[0], run.cluster.now

    monkeypatch.setattr(run.cluster, "_schedule", schedule_anywhere)
    run.until(run.trains)
    reports_a_fault(run, "node-1", monkeypatch, "{}.example.com")
    assert fail(run, 1) == "node-1"
    run.until(lambda: run.status["recovery"].get("nodesAvoided") == ["node-1"])
    run.until(run.trains, seconds=300)
    assert any(
        "label kubernetes.io/hostname is not its name" in each for each in events(run, "NodeNotAvoided")
    )

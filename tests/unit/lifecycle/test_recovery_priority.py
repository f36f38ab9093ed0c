"""Pods that replace others of a gang have the platform's PriorityClass, once the whole gang has nodes."""

from typing import Any

import pytest
from megatron_operator.api.labels import ANNOTATION_RECOVERY_PRIORITY
from megatron_operator.lifecycle.actions import PinImage, SetPriorityClass
from megatron_operator.lifecycle.recovery import apply_decision
from megatron_operator.lifecycle.recovery_policy import Wait

CLASS = "megatron-recovery"


def bind(pod: dict[str, Any]) -> None:
    """Give a pod a node."""
    pod["spec"] = {"nodeName": "node-1"}
    time = "2026-01-01T00:00:00Z"
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": time}]


@pytest.fixture
def bound(run: Any) -> Any:
    """A run whose pods have nodes."""
    for pod in run.pods:
        bind(pod)
    return run


def actions(run: Any) -> tuple[Any, ...]:
    run.job["metadata"].setdefault("annotations", {})[ANNOTATION_RECOVERY_PRIORITY] = CLASS
    return apply_decision(run.status(), run.snapshot(), Wait("the run trains")).actions


def test_the_class_is_set_once_the_whole_gang_has_nodes(bound: Any) -> None:
    bound.pods[1]["status"]["phase"] = "Pending"  # its image is pulled
    assert actions(bound) == (SetPriorityClass(bound.job, CLASS),)


def test_pods_of_a_gang_that_waits_for_nodes_do_not_get_it(bound: Any) -> None:
    bound.pods[1] = bound.pod("worker", "Pending")
    assert actions(bound) == ()


def test_a_job_that_has_the_class_is_left_alone(bound: Any) -> None:
    for replica in bound.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["priorityClassName"] = CLASS
    assert actions(bound) == ()


def test_a_job_in_a_queue_stays_as_kueue_admitted_it(bound: Any) -> None:
    bound.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    assert actions(bound) == ()


def test_the_image_is_pinned_first_as_each_change_makes_a_new_version_of_the_job(bound: Any) -> None:
    image = "trainer@sha256:" + "a" * 64
    for pod in bound.pods:
        pod["status"]["containerStatuses"] = [{"name": "pytorch", "imageID": f"docker.io/library/{image}"}]
    assert actions(bound) == (PinImage(bound.job, image),)

"""Pods that replace others of a gang have the platform's PriorityClass, once the gang has run."""

from typing import Any

from megatron_operator.api.labels import ANNOTATION_RECOVERY_PRIORITY
from megatron_operator.lifecycle.actions import PinImage, SetPriorityClass
from megatron_operator.lifecycle.recovery import apply_decision
from megatron_operator.lifecycle.recovery_policy import Wait

CLASS = "megatron-recovery"


def actions(run: Any) -> tuple[Any, ...]:
    run.job["metadata"].setdefault("annotations", {})[ANNOTATION_RECOVERY_PRIORITY] = CLASS
    return apply_decision(run.status(), run.snapshot(), Wait("the run trains")).actions


def test_the_class_is_set_once_the_whole_gang_runs(run: Any) -> None:
    assert actions(run) == (SetPriorityClass(run.job, CLASS),)


def test_pods_of_a_gang_that_waits_for_nodes_do_not_get_it(run: Any) -> None:
    run.pods[1] = run.pod("worker", "Pending")
    assert actions(run) == ()


def test_a_job_that_has_the_class_is_left_alone(run: Any) -> None:
    for replica in run.job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["priorityClassName"] = CLASS
    assert actions(run) == ()


def test_a_job_in_a_queue_stays_as_kueue_admitted_it(run: Any) -> None:
    run.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    assert actions(run) == ()


def test_the_image_is_pinned_first_as_each_change_makes_a_new_version_of_the_job(run: Any) -> None:
    image = "trainer@sha256:" + "a" * 64
    for pod in run.pods:
        pod["status"]["containerStatuses"] = [{"name": "pytorch", "imageID": f"docker.io/library/{image}"}]
    assert actions(run) == (PinImage(run.job, image),)
